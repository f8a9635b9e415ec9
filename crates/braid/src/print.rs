//! Printing of results to standard output.

use std::fmt::Display;
use std::io::{self, Write};

use serde::Serialize;

use crate::failure::Failure;

/// Prints a result as JSON.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| Failure::run("cannot write the result as JSON", e))?;
    print(format_args!("{text}\n"))
}

/// Prints a result. If the reader has closed the pipe (`| head`), this is no failure: the reader has what it
/// wanted.
pub fn print(text: impl Display) -> Result<(), Failure> {
    print_to(&mut io::stdout().lock(), text)
}

fn print_to(out: &mut impl Write, text: impl Display) -> Result<(), Failure> {
    // Without the flush, an error would be lost when the process drops the buffer of standard output.
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::run("cannot write the result", e))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer whose writes fail with this error.
    struct FailingWriter(io::ErrorKind);

    impl Write for FailingWriter {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_pipe_is_no_failure_and_a_full_disk_is() {
        assert!(print_to(&mut FailingWriter(io::ErrorKind::BrokenPipe), "text").is_ok());
        let full = print_to(&mut FailingWriter(io::ErrorKind::StorageFull), "text");
        assert!(matches!(full, Err(Failure::Run(_))));
    }
}
