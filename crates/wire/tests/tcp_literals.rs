//! TCP headers and options, compared byte by byte with literals, and malformed ones.

use braid_wire::mptcp::{Capable, CapableFlags, Dss, DssMapping, Join, MptcpOption, WireDsn};
use braid_wire::tcp::{
    self, Flags, MAX_OPTIONS_LEN, Options, Repr, SackBlocks, Timestamps, raw_options,
};
use braid_wire::{Error, Seq32};

const TS: Timestamps = Timestamps {
    value: 0x0102_0304,
    echo: 0x0506_0708,
};

/// A SYN with MP_CAPABLE in the layout of Linux.
#[test]
fn syn_of_a_multipath_client() {
    let bytes: [u8; 44] = [
        0x9c, 0x40, 0x01, 0xbb, // ports
        0xff, 0xff, 0xff, 0xff, // sequence
        0, 0, 0, 0, // acknowledgement
        0xb0, 0x02, 0xfa, 0xf0, // data offset, flags, window
        0, 0, 0, 0, // checksum, urgent pointer
        2, 4, 0x05, 0xb4, // MSS
        4, 2, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8, // SACK permitted, timestamps
        1, 3, 3, 7, // window scale
        0x1e, 0x04, 0x01, 0x01, // MP_CAPABLE
    ];
    let mut options = Options {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(TS),
        ..Options::default()
    };
    let flags = CapableFlags::DEFAULT_OFFER;
    options
        .mptcp
        .push(MptcpOption::Capable(Capable::Syn { version: 1, flags }));
    let repr = Repr {
        seq: Seq32(u32::MAX),
        window: 64240,
        options,
        ..Repr::new(40000, 443, Flags::SYN)
    };
    let mut buf = [0xa5; 44];
    repr.emit(&mut buf);
    assert_eq!(buf, bytes);
    assert_eq!(Repr::parse(&bytes), Ok((repr.clone(), &[][..])));
    assert_eq!(repr.seq_len(0), 1);
    assert_eq!(
        Repr {
            flags: Flags::SYN | Flags::FIN,
            ..repr
        }
        .seq_len(5),
        7
    );
}

/// Nothing of the header before is left in one that is read in its place.
#[test]
fn a_header_is_read_in_the_place_of_another() {
    let syn = Repr {
        options: Options {
            mss: Some(1460),
            timestamps: Some(TS),
            ..Options::default()
        },
        ..Repr::new(40000, 443, Flags::SYN)
    };
    let ack = Repr {
        ack: Seq32(7),
        ..Repr::new(1, 2, Flags::ACK)
    };
    let mut read = Repr::new(0, 0, Flags::EMPTY);
    for repr in [syn, ack] {
        let mut bytes = [0; 60];
        repr.emit(&mut bytes);
        let len = repr.header_len();
        bytes[len] = 0xaa;
        assert_eq!(read.parse_into(&bytes[..len + 1]), Ok(&[0xaa][..]));
        assert_eq!(read, repr);
    }
}

/// Timestamps (12 bytes) and the longest DSS (26 bytes, or 28 with a checksum) fill the 40 bytes exactly. The DSS
/// has an 8-byte DATA_ACK and a mapping with an 8-byte DSN. RFC 8684 section 3.3 requires that they fit together.
#[test]
fn widest_dss_with_timestamps_fills_the_header() {
    for checksum in [None, Some(7)] {
        let mut options = Options {
            timestamps: Some(TS),
            ..Options::default()
        };
        options.mptcp.push(MptcpOption::Dss(Dss {
            data_ack: Some(WireDsn::Eight(1)),
            mapping: Some(DssMapping {
                dsn: WireDsn::Eight(2),
                subflow_seq: 3,
                len: 4,
                checksum,
            }),
            data_fin: true,
        }));
        assert_eq!(options.len(), MAX_OPTIONS_LEN);
        assert_eq!((options.room(), options.sack_room()), (0, 0));
        let repr = Repr {
            options,
            ..Repr::new(1, 2, Flags::ACK)
        };
        let mut buf = [0; 60];
        repr.emit(&mut buf);
        assert_eq!(Repr::parse(&buf), Ok((repr, &[][..])));
    }
}

#[test]
fn handshakes_fit_a_header() {
    let syn = Options {
        mss: Some(1460),
        window_scale: Some(14),
        sack_permitted: true,
        timestamps: Some(TS),
        ..Options::default()
    };
    let (backup, address_id, nonce) = (true, 1, 2);
    let syn_ack = MptcpOption::Join(Join::SynAck {
        backup,
        address_id,
        hmac: 3,
        nonce,
    });
    assert!(syn.fits(&syn_ack));
    let ack = MptcpOption::Join(Join::Ack { hmac: [0; 20] });
    let timestamps = Options {
        timestamps: Some(TS),
        ..Options::default()
    };
    assert!(timestamps.fits(&ack));
    assert!(!syn.fits(&ack), "20 and 24 bytes exceed 40");
}

#[test]
fn sack_room() {
    let mut options = Options {
        timestamps: Some(TS),
        ..Options::default()
    };
    // 40 bytes less timestamps (12) and the head of SACK (4) leave 24, three blocks of 8.
    assert_eq!(options.sack_room(), 3);
    options.sack.push((Seq32(1), Seq32(2)));
    assert_eq!(options.sack_room(), 2);
    let ack = Some(WireDsn::Eight(1));
    options.mptcp.push(MptcpOption::Dss(Dss {
        data_ack: ack,
        ..Dss::default()
    }));
    // The DSS takes 12 bytes, so one block is left, which is in use.
    assert_eq!(options.sack_room(), 0);
    assert_eq!(Options::default().sack_room(), 4);
}

#[test]
fn sack_alone() {
    let bytes = [1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2];
    let sack = SackBlocks::from_iter([(Seq32(1), Seq32(2))]);
    let options = Options {
        sack,
        ..Options::default()
    };
    let mut buf = [0; 12];
    options.emit(&mut buf);
    assert_eq!(buf, bytes);
    assert_eq!(Options::parse(&bytes, false), Ok(options));
}

/// A request is empty, and a cookie has an even length from 4 to 16 (RFC 7413 section 2). Other lengths are
/// ignored.
// Conforms: 7413-4.1.1-1
#[test]
fn fast_open() {
    let cookie = |bytes: &[u8]| Options::parse(bytes, true).unwrap().fast_open;
    assert_eq!(cookie(&[34, 2, 1, 1]).unwrap().len(), 0);
    assert_eq!(&cookie(&[34, 6, 9, 8, 7, 6]).unwrap()[..], [9, 8, 7, 6]);
    assert_eq!(cookie(&[34, 4, 9, 8]), None);
    assert_eq!(cookie(&[34, 7, 9, 8, 7, 6, 5]), None);
    assert_eq!(Options::parse(&[34, 2], false).unwrap(), Options::default());
}

/// RFC 7323 section 2.3 limits the window scale to 14.
#[test]
fn window_scale_over_14_is_14() {
    assert_eq!(
        Options::parse(&[3, 3, 200], true).unwrap().window_scale,
        Some(14)
    );
}

#[test]
fn options_of_a_syn_count_on_a_syn_only() {
    let bytes = [2, 4, 5, 0xb4, 4, 2, 1, 1, 1, 3, 3, 7];
    assert_eq!(Options::parse(&bytes, false), Ok(Options::default()));
    assert_eq!(Options::parse(&bytes, true).unwrap().mss, Some(1460));
}

// Conforms: 9293-3.1-2
#[test]
fn unknown_options_and_malformed_mptcp_are_skipped() {
    // Unknown kind 253; DSS of an impossible length; MP_CAPABLE.
    let bytes = [253, 4, 9, 9, 30, 5, 0x20, 1, 9, 1, 1, 1, 30, 4, 1, 1];
    let options = Options::parse(&bytes, true).unwrap();
    assert_eq!(options.mptcp.len(), 1);
    assert!(options.capable().is_some() && options.dss().is_none() && options.join().is_none());
}

#[test]
fn nothing_counts_after_the_end_of_the_list() {
    assert_eq!(
        Options::parse(&[1, 0, 2, 4, 5, 0xb4], true),
        Ok(Options::default())
    );
}

#[test]
fn lengths_that_contradict_the_list_refuse_the_segment() {
    for bad in [&[8, 0][..], &[8, 1], &[8], &[253, 5, 0, 0], &[30, 4, 1]] {
        assert_eq!(Options::parse(bad, true), Err(Error::BadOption), "{bad:?}");
        let last = raw_options(bad).last();
        assert_eq!(last, Some(Err(Error::BadOption)));
    }
    // Lengths that are invalid for the kind of the option.
    for bad in [
        &[2, 3, 0][..],
        &[3, 2],
        &[4, 3, 0],
        &[5, 2],
        &[5, 9, 0, 0, 0, 0, 0, 0, 0],
    ] {
        assert_eq!(Options::parse(bad, true), Err(Error::BadOption), "{bad:?}");
    }
    assert_eq!(
        Options::parse(&[8, 9, 0, 0, 0, 0, 0, 0, 0], false),
        Err(Error::BadOption)
    );
}

#[test]
fn a_fifth_mptcp_option_is_dropped() {
    let bytes = [30, 4, 1, 1].repeat(5);
    assert_eq!(Options::parse(&bytes, true).unwrap().mptcp.len(), 4);
}

#[test]
fn malformed_headers() {
    // Byte 12 is the data offset in words, in its upper half; bytes 1 and 3 are the lower halves of the ports.
    let mut header = [0; 20];
    Repr::new(1, 2, Flags::ACK).emit(&mut header);
    assert!(Repr::parse(&header).is_ok());
    let with = |at: usize, value: u8| {
        let mut changed = header;
        changed[at] = value;
        Repr::parse(&changed).map(|_| ())
    };
    assert_eq!(with(12, 0x40), Err(Error::BadLength));
    assert_eq!(with(12, 0x60), Err(Error::Truncated));
    assert_eq!(with(1, 0), Err(Error::Unsupported), "source port 0");
    assert_eq!(with(3, 0), Err(Error::Unsupported), "destination port 0");
    assert_eq!(with(12, 0x5f), Ok(()), "reserved bits are ignored");
}

#[test]
#[should_panic(expected = "options exceed 40 bytes")]
fn emitting_options_that_do_not_fit_panics() {
    let mut options = Options {
        timestamps: Some(TS),
        ..Options::default()
    };
    for _ in 0..2 {
        options
            .mptcp
            .push(MptcpOption::Join(Join::Ack { hmac: [0; 20] }));
    }
    Repr {
        options,
        ..Repr::new(1, 2, Flags::ACK)
    }
    .emit(&mut [0; 100]);
}

#[test]
fn flags_read_as_names() {
    assert_eq!(Flags::EMPTY.to_string(), "-");
    assert_eq!((Flags::ACK | Flags::SYN).to_string(), "SYN|ACK");
    assert_eq!(Flags(0xff).to_string(), "FIN|SYN|RST|PSH|ACK|URG|ECE|CWR");
    let mut flags = Flags::SYN;
    flags |= Flags::ECE;
    assert_eq!(flags.without(Flags::SYN), Flags::ECE);
    assert!(flags.intersects(Flags::SYN | Flags::FIN) && !flags.contains(Flags::SYN | Flags::FIN));
}

#[test]
fn checksum_of_a_known_segment() {
    // Header: ports 1 and 2, and 0x5010 for data offset and ACK. Pseudo-header: 127.0.0.1 twice, protocol 6,
    // length 21. Data: "!" and a zero byte.
    let (src, dst) = ("127.0.0.1".parse().unwrap(), "127.0.0.1".parse().unwrap());
    let mut header = [0; 20];
    Repr::new(1, 2, Flags::ACK).emit(&mut header);
    tcp::fill_checksum(src, dst, &mut header, &[b"!"]);
    let total: u32 = 1 + 2 + 0x5010 + 2 * (0x7f00 + 1) + 6 + 21 + 0x2100;
    let expected = !((total >> 16) + (total & 0xffff)) as u16;
    assert_eq!(header[16..18], expected.to_be_bytes());
}
