//! A video in H.264 (ITU-T Rec. H.264). `ffmpeg` encodes the video and decodes the frames that arrive. This
//! module splits the encoded stream into frames for a sender, by the statistics that `ffmpeg` prints of
//! each frame.

use std::io::{self, Write};
use std::ops::Range;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use braid_sim::traffic::{Frame, Kind, Video};

use crate::backend::Error;

/// The filter that makes the pictures: a test pattern with constant noise that moves slowly across the
/// screen. Noise makes I frames large. Slow motion of the same noise keeps the other frames small.
const PICTURES: &str = "testsrc2=size=352x288:rate=25,noise=alls=40:all_seed=1,\
    scroll=h=.008523:v=.003473,format=yuv420p";
/// The filter that makes the pictures shown before the first frame that can be decoded: black.
const BLACK: &str = "color=black:size=352x288:rate=25";
/// Width and height of the pictures, in pixels: CIF, as in [`PICTURES`].
const PICTURE_SIZE: [u16; 2] = [352, 288];
/// Bytes of an IVF file before its first frame.
const IVF_HEADER_LEN: usize = 32;
/// Pictures a second.
const FRAMES_PER_SECOND: u32 = 25;
/// The encoder's options. A lost frame damages few others, because groups are closed and have 12 pictures, and no B
/// frame is a reference. Each frame is one slice. The quantiser is constant, so that a frame's size depends on its
/// type and not on a rate control. One thread makes the same bytes on every machine.
const ENCODER: &str = "-c:v libx264 -threads 1 -preset veryfast -qp 29 -g 12 -keyint_min 12 \
    -sc_threshold 0 -bf 2 -b_strategy 0 -refs 1 -x264-params b-pyramid=none:open-gop=0:cabac=0";
/// The PSNR of two equal pictures, dB. It replaces infinity, which would make every mean infinite.
const EQUAL_PICTURES_PSNR_DB: f64 = 100.0;

/// A short description of the video for reports.
pub const ABOUT: &str = "H.264 by x264, 352x288, 25 frames a second, GOP 12 with two B frames between \
    others, QP 29; a moving test pattern";

/// An encoded video.
#[derive(Debug)]
pub struct EncodedVideo {
    stream: Vec<u8>,
    units: Vec<Unit>,
    span: Duration,
}

/// An access unit: the bytes from which one frame is decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Unit {
    /// The range of its bytes in the stream.
    bytes: Range<usize>,
    kind: Kind,
    /// Number of frames that are shown before this frame.
    display_index: u64,
}

impl EncodedVideo {
    /// Encodes a video. The same `ffmpeg` gives the same bytes.
    ///
    /// # Errors
    /// `ffmpeg` is missing or fails; the number of frames does not fit `span`.
    pub fn encode(span: Duration) -> Result<EncodedVideo, Error> {
        let pictures = format!("{PICTURES},trim=duration={}", span.as_secs_f64());
        let mut args = vec!["-filter_threads", "1", "-f", "lavfi", "-i", &pictures];
        args.extend(ENCODER.split_whitespace());
        args.extend(["-vstats_file", "/dev/stderr", "-f", "h264", "pipe:1"]);
        let output = ffmpeg(&args, &[])?;
        let stats = String::from_utf8_lossy(&output.stderr);
        let units = units(&stats, output.stdout.len());
        let expected = (span.as_secs_f64() * f64::from(FRAMES_PER_SECOND)).round() as usize;
        check_count("made", units.len(), expected)?;
        Ok(EncodedVideo {
            stream: output.stdout,
            units,
            span,
        })
    }

    /// Returns the number of frames.
    pub fn len(&self) -> usize {
        self.units.len()
    }

    /// Returns the mean rate, bit/s.
    pub fn bits_per_second(&self) -> f64 {
        self.stream.len() as f64 * 8.0 / self.span.as_secs_f64()
    }

    /// Returns the frames in the order in which an encoder emits them, each on the stream and with the
    /// priority that `video` gives to its type.
    pub fn frames(&self, video: &Video) -> Vec<Frame> {
        let numbered = (0..).zip(&self.units);
        let frame = |(n, unit): (u32, &Unit)| {
            let (stream, priority) = video.carrier(unit.kind);
            Frame {
                at: Duration::from_secs(1) * n / FRAMES_PER_SECOND,
                stream,
                priority,
                kind: unit.kind,
                len: unit.bytes.len() as u32,
                deadline: Video::DEADLINE,
            }
        };
        numbered.map(frame).collect()
    }

    /// Decodes the frames that `arrived`, and compares them with the pictures before encoding. `arrived`
    /// has the order of [`EncodedVideo::frames`]. Returns the PSNR of every frame in display order, dB. In
    /// place of a frame that cannot be shown, the previous picture counts, or black if there is no previous
    /// picture.
    ///
    /// # Errors
    /// `ffmpeg` is missing or fails.
    pub fn psnr(&self, arrived: &[bool]) -> Result<Vec<f64>, Error> {
        let span = self.span.as_secs_f64();
        let pictures = format!("{PICTURES},trim=duration={span}");
        let ivf = self.ivf(arrived);
        // The frames that arrived lie over black pictures. `overlay` repeats its last picture in place of a missing
        // one. `-copyts` keeps the display times: otherwise the first frame that arrived would be shown at time 0.
        // ffmpeg rejects an IVF file without frames, so the black pictures are then compared alone.
        let (second_input, overlay): (&[_], _) = match ivf.len() > IVF_HEADER_LEN {
            true => (
                &["-f", "ivf", "-threads", "1", "-copyts", "-i", "pipe:0"],
                "[none];[none][1:v]overlay",
            ),
            false => (&[], ",format=yuv420p"),
        };
        let compare =
            format!("{BLACK}:duration={span}{overlay}[seen];[seen][0:v]psnr=stats_file=-");
        let input = ["-filter_complex_threads", "1", "-f", "lavfi", "-i"];
        let output = ["-lavfi", &compare, "-f", "null", "-"];
        let args = [&input[..], &[&pictures], second_input, &output].concat();
        let output = ffmpeg(&args, &ivf)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let values = text.lines().filter_map(|line| {
            let value = field(line, "psnr_avg:")?.parse::<f64>().ok()?;
            Some(value.min(EQUAL_PICTURES_PSNR_DB))
        });
        // With some lost frames ffmpeg 5.1 compares the last picture once more after the end.
        let values: Vec<f64> = values.take(self.units.len()).collect();
        check_count("compared", values.len(), self.units.len())?;
        Ok(values)
    }

    /// Returns an IVF file of the frames that `arrived`. IVF stores the display time of each frame, which raw
    /// H.264 does not. Frames before the first I frame cannot be decoded and are left out.
    fn ivf(&self, arrived: &[bool]) -> Vec<u8> {
        // Signature, version 0, header length 32, codec.
        let mut out = b"DKIF\x00\x00\x20\x00H264".to_vec();
        for dimension in PICTURE_SIZE {
            out.extend(dimension.to_le_bytes());
        }
        let frames = self.units.len() as u32;
        // Time base, number of frames, and an unused word.
        for word in [FRAMES_PER_SECOND, 1, frames, 0] {
            out.extend(word.to_le_bytes());
        }
        let units = self.units.iter().zip(arrived);
        let units = units.filter_map(|(unit, arrived)| arrived.then_some(unit));
        for unit in units.skip_while(|unit| unit.kind != Kind::I) {
            out.extend((unit.bytes.len() as u32).to_le_bytes());
            out.extend(unit.display_index.to_le_bytes());
            out.extend(&self.stream[unit.bytes.clone()]);
        }
        out
    }
}

/// Returns name and version of `ffmpeg` as it prints them.
///
/// # Errors
/// `ffmpeg` is missing or fails.
pub fn version() -> Result<String, Error> {
    let output = ffmpeg(&["-version"], &[])?;
    let text = String::from_utf8_lossy(&output.stdout);
    let name = text.split(" Copyright").next().unwrap_or_default();
    Ok(name.to_owned())
}

/// Runs `ffmpeg` on `input`. Returns its output.
fn ffmpeg(args: &[&str], input: &[u8]) -> Result<Output, Error> {
    let failed = |e: io::Error| match e.kind() {
        io::ErrorKind::NotFound => {
            Error::Missing("the command `ffmpeg` is missing: install the package ffmpeg".to_owned())
        }
        _ => Error::Run(format!("cannot run ffmpeg: {e}")),
    };
    let mut child = Command::new("ffmpeg")
        .args(["-v", "error", "-nostdin"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let stdin = child.stdin.take();
    let output = thread::scope(|scope| {
        // A failed write is no error: ffmpeg ends once it has compared the last picture, perhaps before it
        // has read all input.
        scope.spawn(|| stdin.map(|mut stdin| stdin.write_all(input)));
        child.wait_with_output()
    });
    let output = output.map_err(failed)?;
    if output.status.success() {
        return Ok(output);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let first = stderr.lines().next().unwrap_or("no reason given");
    let text = format!("ffmpeg ended with {}: {first}", output.status);
    Err(Error::Run(text))
}

/// Returns an error unless `ffmpeg` made or compared the expected number of pictures.
fn check_count(what: &str, found: usize, expected: usize) -> Result<(), Error> {
    if found == expected {
        return Ok(());
    }
    let text = format!("ffmpeg {what} {found} pictures; expected {expected}");
    Err(Error::Run(text))
}

/// Returns the word behind `name` in a line of statistics.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, value) = line.split_once(name)?;
    value.split_whitespace().next()
}

/// Returns the access units of a stream of `len` bytes in decoding order. `stats` has a line for each frame, in
/// the format of ffmpeg's option `vstats_file`.
fn units(stats: &str, len: usize) -> Vec<Unit> {
    // A frame begins with a zero byte and a start code of three bytes (annex B). ffmpeg counts the zero as a byte of
    // this frame, but here it is the last byte of the frame before; decoders need only the start code. So each frame
    // lies one byte later than ffmpeg's sizes say: the first byte of the stream belongs to no frame, and the last
    // frame is one byte shorter.
    let mut end = 1.min(len);
    let unit = |line: &str| {
        let begin = end;
        end = len.min(begin + field(line, "f_size=")?.parse::<usize>().ok()?);
        Some(Unit {
            bytes: begin..end,
            kind: match field(line, " type=")? {
                "I" => Kind::I,
                "B" => Kind::B,
                _ => Kind::P,
            },
            display_index: 0,
        })
    };
    let mut units: Vec<Unit> = stats.lines().filter_map(unit).collect();
    // An I or P frame is shown after the B frames that follow it in the stream, because these refer to it. A B frame
    // is shown at once. Exactly one frame before it in the stream is shown later, so its index is one lower than its
    // place in the stream.
    for n in 0..units.len() {
        let following = units[n + 1..].iter();
        let b_frames = following.take_while(|unit| unit.kind == Kind::B).count();
        units[n].display_index = match units[n].kind {
            Kind::B => n.saturating_sub(1),
            _ => n + b_frames,
        } as u64;
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Statistics of four frames, as ffmpeg prints them, and a line that is none.
    const STATS: &str = "\
        frame=     0 q= 26.0 f_size=     18 s_size=  0KiB time= 0.010 br= 1.2kbits/s type= I\n\
        frame=     1 q= 29.0 f_size=      7 s_size=  0KiB time= 0.010 br= 4.9kbits/s type= P\n\
        a warning\n\
        frame=     2 q= 31.0 f_size=     12 s_size=  0KiB time= 0.040 br= 2.5kbits/s type= B\n\
        frame=     3 q= 29.0 f_size=      6 s_size=  0KiB time= 0.080 br= 2.0kbits/s type= P\n";

    #[test]
    fn a_stream_is_cut_into_frames() {
        let units = units(STATS, 43);
        let seen = units.iter();
        let seen = seen.map(|unit| (unit.kind, unit.bytes.clone(), unit.display_index));
        let expected = [
            (Kind::I, 1..19, 0),
            (Kind::P, 19..26, 2),
            (Kind::B, 26..38, 1),
            // The frame has a byte less than ffmpeg counts, because the first byte belongs to no frame.
            (Kind::P, 38..43, 3),
        ];
        assert_eq!(seen.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn without_statistics_there_are_no_frames() {
        assert_eq!(units("", 0), []);
        assert_eq!(units("a warning\nf_size= 3\nf_size= x type= I", 3), []);
    }

    mod ffmpeg {
        use super::*;

        /// Checks that a lost I frame lowers the quality up to the next I frame, 12 frames later, and no
        /// further.
        #[test]
        #[ignore = "ffmpeg"]
        fn a_lost_frame_is_seen() {
            let [video, again] =
                [(); 2].map(|()| EncodedVideo::encode(Duration::from_secs(2)).unwrap());
            assert_eq!(again.stream, video.stream);
            let mut here = vec![true; 50];
            let undamaged = video.psnr(&here).unwrap();
            assert!(
                undamaged.iter().all(|v| (25.0..60.0).contains(v)),
                "{undamaged:?}"
            );
            assert_eq!(video.units[12].kind, Kind::I);
            here[12] = false;
            let seen = video.psnr(&here).unwrap();
            assert_eq!(seen, video.psnr(&here).unwrap());
            for (n, (seen, undamaged)) in seen.iter().zip(&undamaged).enumerate() {
                match (12..24).contains(&n) {
                    true => assert!(*seen < undamaged - 3.0, "frame {n}: {seen} of {undamaged}"),
                    false => assert_eq!(seen, undamaged, "frame {n}"),
                }
            }
        }

        /// Checks that the picture stays black up to the first I frame, even if other frames arrive.
        #[test]
        #[ignore = "ffmpeg"]
        fn without_an_i_frame_nothing_is_shown() {
            // The video is longer than the part of its input that ffmpeg probes to find a stream.
            let video = EncodedVideo::encode(Duration::from_secs(8)).unwrap();
            let undamaged = video.psnr(&[true; 200]).unwrap();
            let black = video.psnr(&[false; 200]).unwrap();
            assert!(black.iter().all(|v| (3.0..12.0).contains(v)), "{black:?}");
            let mut here: Vec<bool> = video.units.iter().map(|u| u.kind != Kind::I).collect();
            assert_eq!(video.psnr(&here).unwrap(), black);
            assert_eq!(video.units[180].kind, Kind::I);
            here[180] = true;
            let seen = video.psnr(&here).unwrap();
            assert_eq!(seen[..180], black[..180]);
            assert_eq!(seen[180..192], undamaged[180..192]);
        }
    }
}
