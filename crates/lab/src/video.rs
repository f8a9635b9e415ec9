//! A video in H.264 (ITU-T Rec. H.264). `ffmpeg` encodes the video and decodes the frames that arrive. This
//! module splits the encoded stream into frames for a sender, by the types of the NAL units. References in
//! parentheses are to the recommendation.

use std::io::{self, Write};
use std::ops::Range;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use braid_sim::traffic::{Frame, Kind, Video};

use crate::backend::Error;

/// The filter that makes the pictures: a test pattern with constant noise that moves slowly across the screen.
/// Noise makes I frames large. Slow motion of the same noise keeps the other frames small.
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
/// The encoder's options: closed groups of 12 pictures, no B frame as a reference, one slice for each frame,
/// so that a lost frame damages few others. The quantiser is constant, so that a frame's size depends on its
/// type and not on a rate control. One thread makes the same bytes on every machine.
const ENCODER: &str = "-c:v libx264 -threads 1 -preset veryfast -qp 29 -g 12 -keyint_min 12 \
    -sc_threshold 0 -bf 2 -b_strategy 0 -refs 1 -x264-params b-pyramid=none:open-gop=0:cabac=0";
/// The PSNR of two equal pictures, dB. It stands for infinity, which has no mean.
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
        args.extend(["-f", "h264", "pipe:1"]);
        let stream = ffmpeg(&args, &[])?;
        let units = units(&stream);
        let expected = (span.as_secs_f64() * f64::from(FRAMES_PER_SECOND)).round() as usize;
        if units.len() != expected {
            let found = units.len();
            let text = format!("ffmpeg made {found} frames of H.264; expected {expected}");
            return Err(Error::Run(text));
        }
        Ok(EncodedVideo {
            stream,
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
        let numbered = self.units.iter().zip(0..);
        let frame = |(unit, n): (&Unit, u32)| {
            let (stream, priority) = video.carrier(unit.kind);
            Frame {
                at: Duration::from_secs(1) * n / FRAMES_PER_SECOND,
                stream,
                priority,
                kind: unit.kind,
                len: u32::try_from(unit.bytes.len()).unwrap_or(u32::MAX),
                deadline: video.deadline,
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
        // ffmpeg rejects an IVF file without frames, so the black pictures are compared alone.
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
        let text = ffmpeg(&args, &ivf)?;
        let text = String::from_utf8_lossy(&text);
        let values = text.lines().filter_map(|line| {
            let (_, value) = line.split_once("psnr_avg:")?;
            value.split_whitespace().next()?.parse::<f64>().ok()
        });
        let values: Vec<f64> = values
            .map(|value| value.min(EQUAL_PICTURES_PSNR_DB))
            .collect();
        if values.len() != self.units.len() {
            let (found, expected) = (values.len(), self.units.len());
            let text = format!("ffmpeg compared {found} pictures; expected {expected}");
            return Err(Error::Run(text));
        }
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
        let decodable = self
            .units
            .iter()
            .zip(arrived)
            .filter(|(_, arrived)| **arrived);
        for (unit, _) in decodable.skip_while(|(unit, _)| unit.kind != Kind::I) {
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
    let text = ffmpeg(&["-version"], &[])?;
    let text = String::from_utf8_lossy(&text);
    let name = text.split(" Copyright").next().unwrap_or_default();
    Ok(name.to_owned())
}

/// Runs `ffmpeg` on `input`. Returns its output.
fn ffmpeg(args: &[&str], input: &[u8]) -> Result<Vec<u8>, Error> {
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
    let Output {
        status,
        stdout,
        stderr,
    } = thread::scope(|scope| {
        // A failed write is no error: ffmpeg ends once it has compared the last picture, perhaps before it has
        // read all input.
        scope.spawn(|| stdin.map(|mut stdin| stdin.write_all(input)));
        child.wait_with_output()
    })
    .map_err(failed)?;
    if status.success() {
        return Ok(stdout);
    }
    let stderr = String::from_utf8_lossy(&stderr);
    let first = stderr.lines().next().unwrap_or("no reason given");
    Err(Error::Run(format!("ffmpeg ended with {status}: {first}")))
}

/// NAL unit type of a slice of a frame that is not an IDR frame (table 7-1).
const SLICE: u8 = 1;
/// NAL unit type of a slice of an IDR frame.
const IDR_SLICE: u8 = 5;
/// NAL unit types that precede the slices of a frame: SEI, parameter sets and access unit delimiter.
const SEI_TO_DELIMITER: std::ops::RangeInclusive<u8> = 6..=9;

/// Returns the access units of a byte stream (annex B) in decoding order.
fn units(stream: &[u8]) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    // The start of the access unit whose first slice has not been found yet.
    let mut pending_start = None;
    for start in starts(stream) {
        let nal = &stream[start + 3..];
        let Some((kind, first)) = nal.split_first() else {
            break;
        };
        // The type is in the low five bits (7.3.1).
        match kind & 31 {
            nal_type @ (SLICE | IDR_SLICE) => {
                // A slice whose first macroblock is not 0 belongs to the same frame as the slice before it.
                let Some((0, kind)) = parse_slice_header(first, nal_type) else {
                    continue;
                };
                let begin = pending_start.take().unwrap_or(start);
                if let Some(before) = units.last_mut() {
                    before.bytes.end = begin;
                }
                units.push(Unit {
                    bytes: begin..stream.len(),
                    kind,
                    display_index: 0,
                });
            }
            nal_type if SEI_TO_DELIMITER.contains(&nal_type) => {
                pending_start.get_or_insert(start);
            }
            _ => {}
        }
    }
    set_display_order(&mut units);
    units
}

/// Returns the positions of the start codes.
fn starts(stream: &[u8]) -> impl Iterator<Item = usize> {
    let triples = stream.windows(3).enumerate();
    triples.filter_map(|(at, three)| (three == [0, 0, 1]).then_some(at))
}

/// Returns the number of a slice's first macroblock, which is 0 in the first slice of a frame, and the frame's
/// type (7.3.3).
fn parse_slice_header(header: &[u8], nal_type: u8) -> Option<(u32, Kind)> {
    let bits = header
        .iter()
        .flat_map(|b| (0..8).rev().map(move |n| b >> n & 1));
    // Two Exp-Golomb codes of a real header take far fewer than 64 bits.
    let mut bits = bits.take(64);
    let first = exp_golomb(&mut bits)?;
    // slice_type modulo 5 (table 7-6): 0 is P, 1 is B, 2 is I.
    let kind = match (nal_type, exp_golomb(&mut bits)? % 5) {
        (IDR_SLICE, _) | (_, 2) => Kind::I,
        (_, 1) => Kind::B,
        _ => Kind::P,
    };
    Some((first, kind))
}

/// Reads an unsigned Exp-Golomb code (9.1): n zeros, a 1, and n further bits. The 1 and the further bits
/// form a binary number. The value of the code is this number minus 1.
fn exp_golomb(bits: &mut impl Iterator<Item = u8>) -> Option<u32> {
    let zeros = bits.position(|bit| bit == 1)?;
    let number = (0..zeros).try_fold(1_u32, |n, _| {
        let bit = bits.next()?;
        n.checked_mul(2)?.checked_add(bit.into())
    });
    number.map(|n| n - 1)
}

/// Sets the display index of each unit. B frames are shown at once. Other frames are shown after the B frames
/// that follow them in the stream, which refer to them.
fn set_display_order(units: &mut [Unit]) {
    let (mut next_index, mut delayed) = (0, None);
    for n in 0..units.len() {
        let shown = match units[n].kind {
            Kind::B => Some(n),
            _ => delayed.replace(n),
        };
        if let Some(shown) = shown {
            units[shown].display_index = next_index;
            next_index += 1;
        }
    }
    if let Some(last) = delayed {
        units[last].display_index = next_index;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream of four frames: I with parameter sets, P, B of two slices, and P.
    const STREAM: [&[u8]; 6] = [
        &[0, 0, 0, 1, 0x67, 9, 9, 0, 0, 1, 0x68, 9],
        // First macroblock 0 ("1"), type 7 ("0001000"): all slices I.
        &[0, 0, 1, 0x65, 0b1000_1000, 7],
        // Type 5 ("00110"): all slices P.
        &[0, 0, 1, 0x41, 0b1001_1000, 7, 7],
        // Type 6 ("00111"): all slices B.
        &[0, 0, 1, 0x01, 0b1001_1100, 7],
        // First macroblock 1 ("010").
        &[0, 0, 1, 0x01, 0b0100_0111, 7],
        // Type 0 ("1"): P.
        &[0, 0, 1, 0x41, 0b1100_0000],
    ];

    #[test]
    fn a_stream_is_cut_into_frames() {
        let stream = STREAM.concat();
        let seen = units(&stream);
        let kinds: Vec<Kind> = seen.iter().map(|u| u.kind).collect();
        assert_eq!(kinds, [Kind::I, Kind::P, Kind::B, Kind::P]);
        let lens: Vec<usize> = seen.iter().map(|u| u.bytes.len()).collect();
        // The first zero of a start code of four bytes belongs to no NAL unit, so the first frame has 17 of the
        // 18 bytes.
        assert_eq!(lens, [17, 7, 12, 5]);
        assert_eq!(seen[3].bytes.end, stream.len());
        let places: Vec<u64> = seen.iter().map(|u| u.display_index).collect();
        assert_eq!(places, [0, 2, 1, 3]);
    }

    #[test]
    fn what_is_no_h264_has_no_frames() {
        assert_eq!(units(b""), []);
        assert_eq!(units(&[0, 0, 1]), []);
        assert_eq!(units(&[0, 0, 1, 0x65]), []);
        assert_eq!(units(&[0; 100]), []);
        // A number of zeros only, which never ends.
        let endless = [&[0, 0, 1, 0x65][..], &[0; 100]].concat();
        assert_eq!(units(&endless), []);
    }

    mod ffmpeg {
        use super::*;

        /// Checks that a lost I frame lowers the quality up to the next I frame, 12 frames later, and no further.
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
                let is_damaged = (12..24).contains(&n);
                assert_eq!(
                    is_damaged,
                    *seen < undamaged - 3.0,
                    "frame {n}: {seen} of {undamaged}"
                );
                assert!(
                    is_damaged || seen == undamaged,
                    "frame {n}: {seen} of {undamaged}"
                );
            }
        }

        /// Checks that the picture stays black up to the first I frame, even if other frames arrive.
        #[test]
        #[ignore = "ffmpeg"]
        fn without_an_i_frame_nothing_is_shown() {
            // ffmpeg probes less than 8 s of its input to find a stream.
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
