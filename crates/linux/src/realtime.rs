//! Threads that must run on time.
#![expect(unsafe_code, reason = "rustix does not know scheduling policies")]

/// Priority of the link emulator under SCHED_FIFO: above ordinary work, below the kernel's own
/// threads (50).
pub const EMULATOR_PRIORITY: i32 = 10;

/// Puts the calling thread under SCHED_FIFO with `priority` (1 to 99), or failing that at least
/// rids its timers of their slack (50 µs by default). Answers whether it is SCHED_FIFO.
pub fn become_realtime(priority: i32) -> bool {
    let parameter = libc::sched_param {
        sched_priority: priority,
    };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the parameter lives through the call; 0 means the calling thread.
    let realtime = unsafe { libc::sched_setscheduler(0, policy, &raw const parameter) } == 0;
    // SAFETY: takes integers only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
    realtime
}
