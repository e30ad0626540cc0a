//! The disks of a controller together: whose turn it is, and what they share.

use super::{Latency, Nanos, Pacer, SharedService};

/// Latencies are drawn from the same sequence in every run.
const SEED: u64 = 0x766d_6474_7261_6365;

/// How a command that is taken now starts.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    pub(crate) at: Nanos,
    /// Latency on top of the disk's own.
    pub(crate) extra: Latency,
    /// Whether the shared limits allow another command.
    pub(crate) room: bool,
    pub(crate) random: &'a mut fastrand::Rng,
}

/// A disk as this module sees it.
pub(crate) trait Disk {
    /// What it needs for a command.
    type Environment<'a>;

    /// Whether commands may wait for being taken.
    fn has_waiting(&self) -> bool;

    /// Takes one command; false if there is none that may be taken.
    fn take(&mut self, start: Start<'_>, env: &mut Self::Environment<'_>) -> bool;

    /// Commands in service.
    fn in_service(&self) -> usize;

    /// When the next command completes, as far as this disk decides.
    fn next_due(&self) -> Option<Nanos>;

    /// Ends the service of that command.
    fn finish(&mut self, at: Nanos);
}

/// What the disks share.
#[derive(Debug)]
pub(crate) struct Shared {
    service: SharedService,
    pacer: Pacer,
    /// The last completion of any disk. When a limit ceases to hold, what it held
    /// back completes from then on.
    last: Nanos,
    /// Whose turn it is to take a command first.
    turn: usize,
    random: fastrand::Rng,
}

/// How busy the disks are at one moment.
#[derive(Clone, Copy, Debug)]
struct Load {
    /// Disks that serve commands.
    disks: usize,
    /// Commands in service.
    commands: usize,
}

impl Shared {
    pub(crate) fn new(service: SharedService) -> Self {
        Self {
            service,
            pacer: Pacer::new(service.iops),
            last: 0,
            turn: 0,
            random: fastrand::Rng::with_seed(SEED),
        }
    }

    /// Changes the speed; commands in service keep their latency.
    pub(crate) fn set_service(&mut self, service: SharedService) {
        self.service = service;
        self.pacer.set(service.iops);
    }

    /// Lets everything happen that is due: commands are taken as the limits
    /// allow, and finished in the order of their times.
    pub(crate) fn advance<D: Disk>(
        &mut self,
        disks: &mut [D],
        now: Nanos,
        env: &mut D::Environment<'_>,
    ) {
        let mut at = now;
        loop {
            self.take(disks, at, env);
            match self.next_completion(disks) {
                Some((due, disk)) if due <= now => {
                    self.last = due;
                    if self.holds(Load::of(disks)) {
                        self.pacer.pass(due);
                    }
                    if let Some(disk) = disks.get_mut(disk) {
                        disk.finish(due);
                    }
                    // What had to wait for this one starts in its place.
                    at = due;
                }
                _ => break,
            }
        }
    }

    /// When `advance` has to be called next, if nothing is submitted.
    pub(crate) fn next_due<D: Disk>(&self, disks: &[D]) -> Option<Nanos> {
        self.next_completion(disks).map(|(due, _)| due)
    }

    /// Disks take commands in turns, one each, until none can.
    fn take<D: Disk>(&mut self, disks: &mut [D], at: Nanos, env: &mut D::Environment<'_>) {
        if !disks.iter().any(Disk::has_waiting) {
            return;
        }
        let mut idle = 0;
        while idle < disks.len() {
            let room = self.has_room(Load::of(disks));
            let start = Start {
                at,
                extra: self.service.latency,
                room,
                random: &mut self.random,
            };
            let turn = self.turn % disks.len();
            let took = disks
                .get_mut(turn)
                .is_some_and(|disk| disk.take(start, env));
            idle = if took { 0 } else { idle + 1 };
            self.turn = turn + 1;
        }
    }

    /// The next completion: when, and of which disk.
    fn next_completion<D: Disk>(&self, disks: &[D]) -> Option<(Nanos, usize)> {
        let due = |(index, disk): (usize, &D)| Some((disk.next_due()?, index));
        let (due, disk) = disks.iter().enumerate().filter_map(due).min()?;
        let due = due.max(self.last);
        if self.holds(Load::of(disks)) {
            Some((self.pacer.earliest(due), disk))
        } else {
            Some((due, disk))
        }
    }

    fn holds(&self, load: Load) -> bool {
        load.disks >= usize::from(self.service.from_disks)
    }

    fn has_room(&self, load: Load) -> bool {
        self.service
            .parallelism
            .is_none_or(|most| !self.holds(load) || load.commands < most as usize)
    }
}

impl Load {
    fn of<D: Disk>(disks: &[D]) -> Self {
        let none = Self {
            disks: 0,
            commands: 0,
        };
        disks
            .iter()
            .map(Disk::in_service)
            .fold(none, |load, commands| Self {
                disks: load.disks + usize::from(commands > 0),
                commands: load.commands + commands,
            })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::service::{Schedule, Service};
    use proptest::prelude::*;

    const MS: Nanos = 1_000_000;
    const SECOND: Nanos = 1_000 * MS;

    /// A disk whose commands are the times at which they were submitted.
    struct Model {
        waiting: VecDeque<Nanos>,
        schedule: Schedule<(Nanos, Nanos)>,
        /// Submission, start and end of each command that ended.
        ended: Vec<(Nanos, Nanos, Nanos)>,
        most_in_service: usize,
    }

    impl Model {
        fn new(service: Service) -> Self {
            Self {
                waiting: VecDeque::new(),
                schedule: Schedule::new(service),
                ended: Vec::new(),
                most_in_service: 0,
            }
        }
    }

    impl Disk for Model {
        type Environment<'a> = ();

        fn has_waiting(&self) -> bool {
            !self.waiting.is_empty()
        }

        fn take(&mut self, start: Start<'_>, (): &mut ()) -> bool {
            if !(start.room && self.schedule.has_room()) {
                return false;
            }
            let Some(submitted) = self.waiting.pop_front() else {
                return false;
            };
            let command = (submitted, start.at);
            self.schedule.start(command, start);
            self.most_in_service = self.most_in_service.max(self.schedule.in_service());
            true
        }

        fn in_service(&self) -> usize {
            self.schedule.in_service()
        }

        fn next_due(&self) -> Option<Nanos> {
            self.schedule.next_due()
        }

        fn finish(&mut self, at: Nanos) {
            let (submitted, started) = self.schedule.finish(at).unwrap();
            self.ended.push((submitted, started, at));
        }
    }

    /// Submits commands at times, wakes as a punctual thread does, or only at
    /// the submissions and at the end.
    fn run(
        shared: SharedService,
        services: &[Service],
        submissions: &[(Nanos, usize, usize)],
        punctual: bool,
    ) -> Vec<Model> {
        let mut shared = Shared::new(shared);
        let mut disks: Vec<Model> = services.iter().copied().map(Model::new).collect();
        let mut now = 0;
        let mut advance_to = |now: &mut Nanos, disks: &mut Vec<Model>, until: Nanos| {
            while let Some(due) = shared
                .next_due(disks)
                .filter(|due| punctual && *due <= until)
            {
                assert!(due >= *now, "the past is due");
                *now = due;
                shared.advance(disks, due, &mut ());
                let next = shared.next_due(disks);
                assert!(next.is_none_or(|next| next > due), "advance stopped early");
            }
            *now = until;
            shared.advance(disks, until, &mut ());
        };
        for (pause, disk, commands) in submissions {
            let at = now + pause;
            advance_to(&mut now, &mut disks, at);
            let count = disks.len();
            disks[disk % count]
                .waiting
                .extend(std::iter::repeat_n(at, *commands));
            advance_to(&mut now, &mut disks, at);
        }
        advance_to(&mut now, &mut disks, 1_000_000 * SECOND);
        for disk in &disks {
            assert!(disk.waiting.is_empty() && disk.in_service() == 0, "left");
        }
        disks
    }

    /// Most ends in any second.
    fn most_in_a_second(mut ends: Vec<Nanos>) -> usize {
        ends.sort_unstable();
        (0..ends.len())
            .map(|first| ends[first..].partition_point(|end| *end < ends[first] + SECOND))
            .max()
            .unwrap_or(0)
    }

    fn ends(disk: &Model) -> Vec<Nanos> {
        disk.ended.iter().map(|(.., end)| *end).collect()
    }

    fn submissions(disks: usize) -> impl Strategy<Value = Vec<(Nanos, usize, usize)>> {
        prop::collection::vec((0..300 * MS, 0..disks, 1..20_usize), 1..20)
    }

    fn any_latency() -> impl Strategy<Value = Latency> {
        prop_oneof![
            (0..100 * MS).prop_map(Latency::Fixed),
            (0..100 * MS, 0..300 * MS).prop_map(|(low, more)| Latency::Uniform {
                low,
                high: low + more
            }),
            (2..5_u32).prop_map(|one_in| Latency::Tail {
                usual: MS,
                rare: 900 * MS,
                one_in
            }),
        ]
    }

    fn any_service() -> impl Strategy<Value = Service> {
        (any_latency(), 1..20_u32, prop::option::of(1..60_u32)).prop_map(
            |(latency, parallelism, iops)| Service {
                latency,
                parallelism,
                iops,
            },
        )
    }

    fn least(latency: Latency) -> Nanos {
        match latency {
            Latency::Fixed(time) => time,
            Latency::Uniform { low, .. } => low,
            Latency::Tail { usual, rare, .. } => usual.min(rare),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        /// One disk with a fixed latency, against the formula.
        #[test]
        fn one_disk_does_as_the_formula_says(
            latency in 0..100 * MS,
            parallelism in 1..20_u32,
            iops in prop::option::of(1..60_u32),
            submissions in submissions(1),
            punctual: bool,
        ) {
            let service = Service { latency: Latency::Fixed(latency), parallelism, iops };
            let disks = run(SharedService::default(), &[service], &submissions, punctual);
            let interval = iops.map_or(0, |iops| SECOND.div_ceil(iops.into()));
            let mut expected: Vec<(Nanos, Nanos, Nanos)> = Vec::new();
            let mut now = 0;
            for (pause, _, commands) in &submissions {
                now += pause;
                for _ in 0..*commands {
                    let room = expected.len().checked_sub(parallelism as usize);
                    let start = room.map_or(now, |before| expected[before].2.max(now));
                    let slot = expected.last().map_or(0, |last| last.2 + interval);
                    expected.push((now, start, (start + latency).max(slot)));
                }
            }
            prop_assert_eq!(&disks[0].ended, &expected);
        }

        /// Several disks: no limit is ever exceeded, and nothing ends too early.
        #[test]
        fn no_limit_is_exceeded(
            services in prop::collection::vec(any_service(), 1..5),
            extra in any_latency(),
            parallelism in prop::option::of(1..20_u32),
            iops in prop::option::of(1..100_u32),
            submissions in submissions(4),
            punctual: bool,
        ) {
            let shared = SharedService { latency: extra, parallelism, iops, from_disks: 1 };
            let disks = run(shared, &services, &submissions, punctual);
            for (disk, service) in disks.iter().zip(&services) {
                prop_assert!(disk.most_in_service <= service.parallelism as usize);
                let least = least(service.latency) + least(extra);
                for (submitted, started, ended) in &disk.ended {
                    prop_assert!(submitted <= started && started + least <= *ended);
                }
                if let Some(iops) = service.iops {
                    prop_assert!(most_in_a_second(ends(disk)) <= iops as usize);
                }
            }
            let all: Vec<Nanos> = disks.iter().flat_map(ends).collect();
            if let Some(iops) = iops {
                prop_assert!(most_in_a_second(all) <= iops as usize);
            }
            if let Some(parallelism) = parallelism {
                // Commands in service at the start of any of them, that one included.
                let commands: Vec<_> = disks.iter().flat_map(|disk| &disk.ended).collect();
                for (_, at, _) in &commands {
                    let serving = commands.iter().filter(|(_, start, end)| start < at && at < end);
                    prop_assert!(serving.count() < parallelism as usize);
                }
            }
            let submitted: usize = submissions.iter().map(|(.., commands)| commands).sum();
            prop_assert_eq!(disks.iter().map(|disk| disk.ended.len()).sum::<usize>(), submitted);
        }

        /// Shared limits do nothing while fewer disks are busy, and hold while as many are.
        #[test]
        fn shared_limits_hold_only_with_enough_disks(
            busy in 1..5_usize,
            from_disks in 1..6_u8,
            commands in 20..60_usize,
            iops in 1..50_u32,
        ) {
            let service = Service { latency: Latency::Fixed(MS), parallelism: 4, iops: None };
            let shared = SharedService { iops: Some(iops), from_disks, ..SharedService::default() };
            let submissions: Vec<_> = (0..busy).map(|disk| (0, disk, commands)).collect();
            let limited = run(shared, &[service; 5], &submissions, true);
            let free = run(SharedService::default(), &[service; 5], &submissions, true);
            let last = |disks: &[Model]| disks.iter().flat_map(ends).max().unwrap();
            if busy < usize::from(from_disks) {
                prop_assert_eq!(last(&limited), last(&free));
            } else {
                // Until a disk has run out of commands, all of them are busy.
                let until = limited
                    .iter()
                    .filter_map(|disk| disk.ended.last())
                    .map(|(.., end)| *end)
                    .min()
                    .unwrap();
                // What the limit held back ends at that very moment.
                let ends = limited.iter().flat_map(ends).filter(|end| *end < until);
                prop_assert!(most_in_a_second(ends.collect()) <= iops as usize);
                prop_assert!(last(&limited) > last(&free));
            }
        }

        /// Disks that are equally busy get equal parts of a shared limit.
        #[test]
        fn equally_busy_disks_get_equal_parts(disks in 2..6_usize, iops in 10..100_u32) {
            let service = Service { latency: Latency::Fixed(MS), parallelism: 4, iops: None };
            let shared = SharedService { iops: Some(iops), ..SharedService::default() };
            let submissions: Vec<_> = (0..disks).map(|disk| (0, disk, 50)).collect();
            let done = run(shared, &vec![service; disks], &submissions, true);
            let half = done.iter().flat_map(ends).max().unwrap() / 2;
            let counts: Vec<usize> = done
                .iter()
                .map(|disk| ends(disk).iter().filter(|end| **end <= half).count())
                .collect();
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            prop_assert!(most - least <= 4, "{counts:?}");
        }
    }

    #[test]
    fn a_stalled_disk_holds_up_only_itself() {
        let service = Service {
            latency: Latency::Fixed(MS),
            ..Service::default()
        };
        let mut shared = Shared::new(SharedService::default());
        let mut disks = [Model::new(service), Model::new(service)];
        for disk in &mut disks {
            disk.waiting.push_back(0);
        }
        shared.advance(&mut disks, 0, &mut ());
        disks[0].schedule.set_stalled(true, 0);
        shared.advance(&mut disks, 5 * MS, &mut ());
        assert_eq!((disks[0].ended.len(), ends(&disks[1])), (0, vec![MS]));
        assert_eq!(shared.next_due(&disks), None);
        disks[0].schedule.set_stalled(false, 7 * MS);
        shared.advance(&mut disks, 7 * MS, &mut ());
        assert_eq!(ends(&disks[0]), [7 * MS]);
    }
}
