//! Which families are exported: the switches of the command line, and what one
//! scrape asks for with `collect[]`.

/// What is exported beside the default families, at the price of more series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Detail {
    /// The counters of every interrupt line beside the sums per disk.
    pub lines: bool,
    /// Of the lines, the controllers' own vectors alone.
    pub vectors: bool,
    /// What is otherwise summed up by controller, for every disk.
    pub disks: bool,
    /// What each CPU does for each controller. Only a source that was opened with
    /// [`shares`](crate::snapshot::source::SourceOptions) has it.
    pub cpus: bool,
}

/// Families that are computed together and can be asked for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collector {
    /// Controllers and disks.
    Topology,
    /// States, runs and missed runs of the probes.
    Probes,
    /// Interrupts, handlers and completions by disk, and time by CPU.
    Interrupts,
    /// Where completions land and how long they take.
    Completions,
    /// Time-outs and lost interrupts.
    Losses,
    /// Operations on interrupts.
    Msi,
    /// The allocation cache of bios.
    Bios,
    /// What [`Detail::lines`] and [`Detail::vectors`] export.
    Lines,
    /// What [`Detail::disks`] exports.
    Disks,
    /// What [`Detail::cpus`] exports.
    Cpus,
    /// This process.
    Process,
}

impl Collector {
    pub const ALL: [Self; 11] = [
        Self::Topology,
        Self::Probes,
        Self::Interrupts,
        Self::Completions,
        Self::Losses,
        Self::Msi,
        Self::Bios,
        Self::Lines,
        Self::Disks,
        Self::Cpus,
        Self::Process,
    ];

    /// Its name in `collect[]` and in the label `collector`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Topology => "topology",
            Self::Probes => "probes",
            Self::Interrupts => "interrupts",
            Self::Completions => "completions",
            Self::Losses => "losses",
            Self::Msi => "msi",
            Self::Bios => "bios",
            Self::Lines => "lines",
            Self::Disks => "disks",
            Self::Cpus => "cpus",
            Self::Process => "process",
        }
    }

    /// The switches that it needs, and whether one of them was given.
    fn switches(self, detail: Detail) -> Option<(&'static str, bool)> {
        let Detail {
            lines,
            vectors,
            disks,
            cpus,
        } = detail;
        match self {
            Self::Lines => Some(("--metrics.lines or --metrics.vectors", lines || vectors)),
            Self::Disks => Some(("--metrics.disks", disks)),
            Self::Cpus => Some(("--metrics.cpus", cpus)),
            _ => None,
        }
    }
}

/// What was asked for that there is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    #[error("there is no parameter {0:?}; only collect[] is known, and may be given several times")]
    Parameter(String),
    #[error("there is no collector {0:?}; there are {all}", all = all_names())]
    Collector(String),
    #[error("the collector {collector} is off: start vmdtrace with {switches}")]
    Off {
        collector: &'static str,
        switches: &'static str,
    },
}

fn all_names() -> String {
    Collector::ALL.map(Collector::as_str).join(", ")
}

/// The switches, and the collectors of one scrape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    pub detail: Detail,
    /// A bit for each collector asked for; None: all that are switched on.
    asked: Option<u16>,
}

impl From<Detail> for Selection {
    /// All collectors that are switched on.
    fn from(detail: Detail) -> Self {
        Self {
            detail,
            asked: None,
        }
    }
}

impl Selection {
    /// What the parameters of a request ask for; all there is if none is given.
    ///
    /// # Errors
    /// At the first parameter or collector that there is not, or that is off.
    pub fn of_request<'a>(
        detail: Detail,
        parameters: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, SelectionError> {
        let mut asked = None;
        for (key, name) in parameters {
            if key != "collect[]" {
                return Err(SelectionError::Parameter(key.to_owned()));
            }
            let collector = Collector::ALL.into_iter().find(|it| it.as_str() == name);
            let Some(collector) = collector else {
                return Err(SelectionError::Collector(name.to_owned()));
            };
            if let Some((switches, false)) = collector.switches(detail) {
                return Err(SelectionError::Off {
                    collector: collector.as_str(),
                    switches,
                });
            }
            asked = Some(asked.unwrap_or(0) | bit(collector));
        }
        Ok(Self { detail, asked })
    }

    /// Whether this scrape has the collector's families.
    #[must_use]
    pub fn has(self, collector: Collector) -> bool {
        let on = collector.switches(self.detail).is_none_or(|(_, on)| on);
        on && self.asked.is_none_or(|asked| asked & bit(collector) != 0)
    }
}

fn bit(collector: Collector) -> u16 {
    1 << collector as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISKS: Detail = Detail {
        lines: false,
        vectors: false,
        disks: true,
        cpus: false,
    };

    fn chosen(selection: Selection) -> Vec<&'static str> {
        let chosen = Collector::ALL.into_iter().filter(|it| selection.has(*it));
        chosen.map(Collector::as_str).collect()
    }

    #[test]
    fn without_parameters_everything_that_is_on_is_chosen() {
        let all = Selection::of_request(DISKS, []).unwrap();
        assert_eq!(all, Selection::from(DISKS));
        let chosen = chosen(all);
        assert_eq!(chosen.len(), Collector::ALL.len() - 2);
        assert!(!chosen.contains(&"lines") && !chosen.contains(&"cpus"));
    }

    #[test]
    fn those_asked_for_are_chosen_and_no_others() {
        let asked = [("collect[]", "disks"), ("collect[]", "probes")];
        let selection = Selection::of_request(DISKS, asked).unwrap();
        assert_eq!(chosen(selection), ["probes", "disks"]);
    }

    #[test]
    fn what_there_is_not_is_named_with_what_there_is() {
        let error = |pair| {
            let error = Selection::of_request(DISKS, [pair]).unwrap_err();
            error.to_string()
        };
        let unknown = error(("collect[]", "disk"));
        assert!(unknown.starts_with("there is no collector \"disk\"; there are topology, "));
        assert!(unknown.ends_with(", process"), "{unknown}");
        assert!(error(("collect", "disks")).contains("only collect[] is known"));
        assert_eq!(
            error(("collect[]", "lines")),
            "the collector lines is off: start vmdtrace with --metrics.lines or --metrics.vectors"
        );
    }
}
