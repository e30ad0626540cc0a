//! Settings from a file, by the names of the flags.
//!
//! There is no second list of names and no second reading of values: each setting
//! of the file becomes the flag of its name, and the command line's own parser
//! judges it. A flag that is given on the command line replaces the file's.

mod yaml;

use std::error::Error as _;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use yaml::{Problem, Setting};

/// A file of settings is a screen or two; more is something else.
const MAX_BYTES: u64 = 64 * 1024;

/// Why a file of settings cannot be used. Each message names the file, the line
/// where there is one, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {}: {source}; see --config.file", .file.display())]
    Read { file: PathBuf, source: io::Error },
    #[error("{} is larger than {MAX_BYTES} bytes: it is no file of settings", .file.display())]
    TooLarge { file: PathBuf },
    #[error("{}:{line}: {what}", .file.display())]
    Setting {
        file: PathBuf,
        line: usize,
        what: String,
    },
    /// Right one by one, wrong together.
    #[error("{}: {what}", .file.display())]
    Together { file: PathBuf, what: String },
}

/// Flags that a file may hold, too: those of `T`, as the command line gave them.
#[derive(Clone)]
pub struct Flags<T> {
    /// `--name=value`, only of those that were given.
    given: Vec<OsString>,
    /// The names of those.
    names: Vec<String>,
    all: PhantomData<fn() -> T>,
}

impl<T> fmt::Debug for Flags<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(&self.given).finish()
    }
}

impl<T: clap::Args> Flags<T> {
    /// The settings: of the command line, then of the file, then the defaults.
    ///
    /// # Errors
    /// If the file cannot be read, or a setting in it is unknown or wrong.
    pub fn settings(&self, file: Option<&Path>) -> Result<T, ConfigError> {
        let Some(file) = file else {
            return self.with(Vec::new(), Path::new("the command line"));
        };
        let in_file = |Problem { line, what }| ConfigError::Setting {
            file: file.to_owned(),
            line,
            what,
        };
        let text = read(file)?;
        let mut arguments = Vec::new();
        for setting in yaml::settings(&text).map_err(in_file)? {
            let checked = check::<T>(&setting).map_err(in_file)?;
            if !self.names.contains(&setting.name) {
                arguments.extend(checked);
            }
        }
        self.with(arguments, file)
    }

    fn with(&self, mut arguments: Vec<OsString>, file: &Path) -> Result<T, ConfigError> {
        arguments.extend(self.given.iter().cloned());
        parse(arguments).map_err(|error| ConfigError::Together {
            file: file.to_owned(),
            what: describe(&error),
        })
    }
}

/// As the flags of `T` themselves, but for remembering which were given.
impl<T: clap::Args> clap::FromArgMatches for Flags<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let (mut given, mut names) = (Vec::new(), Vec::new());
        for argument in command::<T>().get_arguments() {
            let id = argument.get_id().as_str();
            let Some(name) = argument.get_long() else {
                continue;
            };
            if matches.value_source(id) != Some(ValueSource::CommandLine) {
                continue;
            }
            names.push(name.to_owned());
            for value in matches.get_raw(id).into_iter().flatten() {
                given.push(as_flag(name, value));
            }
        }
        Ok(Self {
            given,
            names,
            all: PhantomData,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<T: clap::Args> clap::Args for Flags<T> {
    fn augment_args(command: Command) -> Command {
        with_switches::<T>(T::augment_args(command))
    }

    fn augment_args_for_update(command: Command) -> Command {
        with_switches::<T>(T::augment_args_for_update(command))
    }
}

fn read(file: &Path) -> Result<String, ConfigError> {
    let mut text = String::new();
    let read = File::open(file).and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text));
    read.map_err(|source| ConfigError::Read {
        file: file.to_owned(),
        source,
    })?;
    if text.len() as u64 > MAX_BYTES {
        return Err(ConfigError::TooLarge {
            file: file.to_owned(),
        });
    }
    Ok(text)
}

fn command<T: clap::Args>() -> Command {
    let command = Command::new("settings").no_binary_name(true);
    <Flags<T> as clap::Args>::augment_args(command).disable_help_flag(true)
}

/// Lets the switches of `T` take a value, so that what a file switches on can be
/// switched off by a flag.
fn with_switches<T: clap::Args>(command: Command) -> Command {
    let settings = T::augment_args(Command::new("settings"));
    let switches: Vec<_> = settings
        .get_arguments()
        .filter(|it| matches!(it.get_action(), ArgAction::SetTrue))
        .map(Arg::get_id)
        .collect();
    command.mut_args(|argument| {
        if !switches.contains(&argument.get_id()) {
            return argument;
        }
        argument
            .action(ArgAction::Set)
            .value_name("BOOL")
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .default_value("false")
            .hide_default_value(true)
    })
}

fn parse<T: clap::Args>(arguments: Vec<OsString>) -> Result<T, clap::Error> {
    T::from_arg_matches(&command::<T>().try_get_matches_from(arguments)?)
}

fn as_flag(name: &str, value: &std::ffi::OsStr) -> OsString {
    let mut flag = OsString::from(format!("--{name}="));
    flag.push(value);
    flag
}

/// The flags that one setting of the file stands for.
fn check<T: clap::Args>(setting: &Setting) -> Result<Vec<OsString>, Problem> {
    let Setting {
        name,
        line,
        values,
        list,
    } = setting;
    let command = command::<T>();
    let known: Vec<&Arg> = command
        .get_arguments()
        .filter(|it| it.get_long().is_some())
        .collect();
    let Some(argument) = known.iter().find(|it| it.get_long() == Some(name)) else {
        return Err(Problem::new(*line, unknown(&command, &known, name)));
    };
    if *list && !matches!(argument.get_action(), ArgAction::Append) {
        return Err(Problem::new(*line, format!("{name} takes one value")));
    }
    let mut flags = Vec::new();
    for value in values {
        let flag = as_flag(name, value.text.as_ref());
        parse::<T>(vec![flag.clone()]).map_err(|error| {
            Problem::new(
                value.line,
                format!("{name} cannot be {:?}: {}", value.text, describe(&error)),
            )
        })?;
        flags.push(flag);
    }
    Ok(flags)
}

fn unknown(command: &Command, known: &[&Arg], name: &str) -> String {
    let tried = command
        .clone()
        .try_get_matches_from([as_flag(name, "".as_ref())]);
    let similar = match tried
        .as_ref()
        .map_err(|it| it.get(ContextKind::SuggestedArg))
    {
        Err(Some(ContextValue::String(flag))) => flag.strip_prefix("--"),
        _ => None,
    };
    match similar {
        Some(similar) => format!("there is no setting {name:?}: do you mean {similar}?"),
        None => {
            let names: Vec<_> = known.iter().filter_map(|it| it.get_long()).collect();
            format!("there is no setting {name:?}, only {}", names.join(", "))
        }
    }
}

/// What the command line's parser has against a value, without what only a command
/// line has (usage, the flag's own name).
fn describe(error: &clap::Error) -> String {
    if let Some(cause) = error.source() {
        return cause.to_string();
    }
    let text = |kind| match error.get(kind) {
        Some(ContextValue::Strings(values)) if !values.is_empty() => Some(values.join(", ")),
        _ => None,
    };
    match error.kind() {
        ErrorKind::InvalidValue => match text(ContextKind::ValidValue) {
            Some(values) => format!("it must be one of: {values}"),
            None => "a value is required".to_owned(),
        },
        _ => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            first.trim_start_matches("error: ").to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Args, PartialEq, Eq)]
    struct Settings {
        #[arg(long = "web.port", default_value_t = 80, value_parser = clap::value_parser!(u16).range(1..))]
        port: u16,
        #[arg(long)]
        also: Vec<String>,
        #[arg(
            long = "all",
            num_args = 0..=1,
            require_equals = true,
            default_missing_value = "true",
            default_value_t = false,
            action = ArgAction::Set
        )]
        all: bool,
    }

    #[derive(Debug, clap::Parser)]
    struct Cli {
        #[command(flatten)]
        flags: Flags<Settings>,
        #[arg(long)]
        other: bool,
    }

    fn settings(arguments: &[&str], file: Option<&str>) -> Result<Settings, ConfigError> {
        let arguments = ["program"].iter().chain(arguments);
        let cli = Cli::try_parse_from(arguments).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file.yaml");
        if let Some(text) = file {
            std::fs::write(&path, text).unwrap();
        }
        let read = cli.flags.settings(file.map(|_| path.as_path()));
        assert!(!cli.other);
        read
    }

    fn problem(file: &str) -> String {
        let error = settings(&[], Some(file)).unwrap_err().to_string();
        let (_, rest) = error.split_once("file.yaml:").unwrap();
        rest.to_owned()
    }

    #[test]
    fn flags_override_the_file_and_the_file_the_defaults() {
        let file = "web.port: 8080\nalso: [a, b]\nall: true\n";
        let read = |arguments: &[&str], file| settings(arguments, file).unwrap();
        assert_eq!(
            read(&[], None),
            Settings {
                port: 80,
                also: vec![],
                all: false
            }
        );
        assert_eq!(
            read(&[], Some(file)),
            Settings {
                port: 8080,
                also: vec!["a".into(), "b".into()],
                all: true
            }
        );
        assert_eq!(
            read(&["--also=c", "--all=false", "--web.port", "81"], Some(file)),
            Settings {
                port: 81,
                also: vec!["c".into()],
                all: false
            }
        );
        assert!(read(&["--all"], Some("also: x\n")).all);
    }

    #[test]
    fn each_error_has_its_line_and_what_to_do() {
        assert_eq!(
            problem("web.port: 1\nweb.prot: 2\n"),
            "2: there is no setting \"web.prot\": do you mean web.port?"
        );
        assert_eq!(
            problem("other: true\n"),
            "1: there is no setting \"other\", only web.port, also, all"
        );
        assert_eq!(
            problem("web.port: 70000\n"),
            "1: web.port cannot be \"70000\": 70000 is not in 1..=65535"
        );
        assert_eq!(
            problem("also:\n  - a\nall: yes\n"),
            "3: all cannot be \"yes\": it must be one of: true, false"
        );
        assert_eq!(problem("web.port: [1, 2]\n"), "1: web.port takes one value");
        // Judged even where a flag overrides it.
        let error = settings(&["--web.port=1"], Some("web.port: x\n")).unwrap_err();
        assert!(error.to_string().contains("invalid digit"), "{error}");
    }

    #[test]
    fn a_file_that_is_not_there_or_no_text_is_named() {
        let flags = Cli::try_parse_from(["program"]).unwrap().flags;
        let error = flags
            .settings(Some(Path::new("/nonexistent.yaml")))
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot read /nonexistent.yaml: No such file or directory (os error 2); see --config.file"
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        let error = flags.settings(Some(&path)).unwrap_err().to_string();
        assert!(error.contains("UTF-8"), "{error}");
        std::fs::write(&path, " ".repeat(MAX_BYTES as usize + 1)).unwrap();
        let error = flags.settings(Some(&path)).unwrap_err().to_string();
        assert!(error.contains("larger than"), "{error}");
    }
}
