//! How a comparison was run, for whoever reads its figures.

use std::fmt;
use std::thread::available_parallelism;

/// Of what was not asked for it is as the help of `compare` says.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub(crate) struct Setup {
    pub(crate) rounds: u32,
    /// Workers at once; `None`: as the workload wants.
    pub(crate) workers: Option<u64>,
    pub(crate) processes: bool,
    /// Operations in a second, if they came at a fixed rate.
    pub(crate) rate: Option<f64>,
    /// After which a phase was ended, if it was.
    pub(crate) limit_seconds: Option<u64>,
    pub(crate) warm: bool,
    /// What was to be left of the machine's memory, and what was, if it was held down.
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) memory_left_bytes: Option<u64>,
    pub(crate) image_bytes: u64,
    /// Whether all of their bytes had been written before.
    pub(crate) filled: bool,
    /// How many reads, and how many writes, disks of images answered in a second, if they were held down.
    pub(crate) iops: Option<u32>,
    /// The phase that was to be the last one, if it was named.
    pub(crate) until: Option<String>,
    pub(crate) no_fsck: bool,
    /// The version of this program and of the library in it, and what the program `varve` says of its own, if it served.
    pub(crate) version: &'static str,
    pub(crate) varve: Option<String>,
    pub(crate) machine: Machine,
}

/// The machine.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub(crate) struct Machine {
    /// The release of its kernel.
    kernel: String,
    /// CPUs that this program may use.
    cpus: usize,
}

impl Machine {
    /// This one.
    pub(crate) fn this() -> Machine {
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        Machine { kernel, cpus: available_parallelism().map_or(0, std::num::NonZero::get) }
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { kernel, cpus } = &self.machine;
        write!(f, "varve-bench {}", self.version)?;
        if let Some(varve) = &self.varve {
            write!(f, ", {varve}")?;
        }
        let image_mib = self.image_bytes >> 20;
        write!(f, ", Linux {kernel}, {cpus} CPUs: --rounds {}", self.rounds)?;
        write!(f, " --image-size {image_mib}M")?;
        option(f, "workers", self.workers)?;
        option(f, "rate", self.rate)?;
        option(f, "for", self.limit_seconds.map(|seconds| format!("{seconds}s")))?;
        option(f, "iops", self.iops)?;
        option(f, "until", self.until.as_ref().map(|phase| format!("{phase:?}")))?;
        option(f, "memory", self.memory_bytes.map(|bytes| format!("{}M", bytes >> 20)))?;
        if let Some(bytes) = self.memory_left_bytes {
            write!(f, " ({}M were left)", bytes >> 20)?;
        }
        let switches = [
            ("filled", self.filled),
            ("processes", self.processes),
            ("warm", self.warm),
            ("no-fsck", self.no_fsck),
        ];
        switches.iter().filter(|it| it.1).try_for_each(|(name, _)| write!(f, " --{name}"))
    }
}

/// An option, if it was given.
fn option(f: &mut fmt::Formatter<'_>, name: &str, value: Option<impl fmt::Display>) -> fmt::Result {
    value.map_or(Ok(()), |value| write!(f, " --{name} {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_is_told() {
        let machine = Machine { kernel: "6.18".to_owned(), cpus: 2 };
        let plain = Setup {
            rounds: 3,
            version: "0.1.0",
            image_bytes: 64 << 30,
            machine,
            ..Setup::default()
        };
        let given = "varve-bench 0.1.0, Linux 6.18, 2 CPUs: --rounds 3 --image-size 65536M";
        assert_eq!(plain.to_string(), given);
        let all = Setup {
            workers: Some(4),
            processes: true,
            rate: Some(1000.0),
            limit_seconds: Some(90),
            memory_bytes: Some(2 << 30),
            memory_left_bytes: Some(2050 << 20),
            iops: Some(3000),
            until: Some("stat cold".to_owned()),
            no_fsck: true,
            filled: true,
            varve: Some("varve 0.1.0".to_owned()),
            ..plain
        };
        let given = "varve-bench 0.1.0, varve 0.1.0, Linux 6.18, 2 CPUs: --rounds 3 --image-size 65536M --workers 4 \
                     --rate 1000 --for 90s --iops 3000 --until \"stat cold\" --memory 2048M (2050M were left) --filled \
                     --processes --no-fsck";
        assert_eq!(all.to_string(), given);
    }
}
