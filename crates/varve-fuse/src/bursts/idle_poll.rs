//! Keeps idle CPUs from halting.
//!
//! An answer wakes its caller, often on a CPU that went idle a few microseconds ago. In a virtual machine an idle CPU
//! halts into the hypervisor, and waking it costs several times what the request did (measured with two CPUs: 13
//! microseconds for a chmod against 9, 45 for a rename against 25). A process that holds /dev/cpu_dma_latency open
//! with the value 0 makes idle CPUs poll instead (the kernel's Documentation/power/pm_qos_interface). The kernel ends
//! this if the process dies.

use std::fs::{File, OpenOptions};
use std::io::Write;

pub(super) const DEVICE: &str = "/dev/cpu_dma_latency";
const CPU_IDLE_DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
/// The kernel's driver for machines where going idle leaves the virtual machine.
const VIRTUAL_DRIVER: &str = "haltpoll";

/// Whether idle CPUs poll during a burst of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdlePoll {
    /// Where halting is expensive: in a virtual machine with the `haltpoll` driver.
    Auto,
    /// On every machine.
    Always,
    /// Never.
    Never,
}

impl IdlePoll {
    #[allow(clippy::disallowed_methods, reason = "the idle driver belongs to the machine")]
    pub(super) fn is_wanted(self) -> bool {
        match self {
            IdlePoll::Always => true,
            IdlePoll::Never => false,
            IdlePoll::Auto => std::fs::read_to_string(CPU_IDLE_DRIVER)
                .is_ok_and(|driver| driver.trim() == VIRTUAL_DRIVER),
        }
    }
}

/// Keeps idle CPUs polling while the file is open.
#[allow(clippy::disallowed_methods, reason = "the device belongs to the machine")]
pub(super) fn hold_awake() -> std::io::Result<File> {
    let mut device = OpenOptions::new().write(true).open(DEVICE)?;
    device.write_all(&0_i32.to_ne_bytes())?;
    Ok(device)
}
