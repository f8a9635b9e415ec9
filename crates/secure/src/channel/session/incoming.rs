//! The receive path of a protected connection: received records go to the handshake, or to a reader.

use std::io::IoSlice;
use std::sync::Arc;

use braid_engine::{ApiError, ConnId, JoinAuth, Stack};
use braid_wire::Instant;
use rustls::{AlertDescription, HandshakeKind};
use zeroize::Zeroizing;

use super::super::ChannelError;
use super::super::flow::Incoming;
use super::super::parameters;
use super::super::record::{
    self, ContentType, END_OF_EARLY_DATA, EncryptionLevel, HEADER_LEN, Header,
};
use super::super::scratch::PlaintextBuf;
use super::super::slices::Input;
use super::{MAX_BYTES_BEFORE_TRAFFIC_KEYS, Opened, Tls};

impl Tls {
    /// Processes received records. Puts the payload into the reader's buffer `plain` until the buffer has no more
    /// room. Without `plain`, stops at the first record that needs a reader.
    pub(in crate::channel) fn drive<E: From<ApiError> + From<ChannelError>>(
        &mut self,
        now: Instant,
        conn: ConnId,
        stack: &mut Stack,
        mut plain: Option<&mut PlaintextBuf<'_>>,
    ) -> Result<(), E> {
        self.flush(now, conn, stack)?;
        self.deliver_opened(&mut plain);
        while self.error.is_none() && stack.readable(conn) > 0 {
            self.endpoint.clock.advance(now);
            let taken = stack.read_with(now, conn, |bufs| {
                let mut input = Input::new(bufs);
                let total = input.remaining();
                if self.close_notify_received {
                    // Bytes after close_notify are ignored (RFC 8446 section 6.1).
                    return Ok(total);
                }
                if let Err(error) = self.read_records(&mut input, &mut plain) {
                    self.fail(error);
                }
                Ok::<_, ApiError>(total - input.remaining())
            })?;
            // The engine must have the secret before the answer leaves, because the box can join as soon as it has
            // the answer.
            self.agree_on_joins(now, conn, stack)?;
            // Sends an answer, or the alert about an error.
            self.flush(now, conn, stack)?;
            if taken == 0 {
                break;
            }
        }
        // The TCP connection has ended without a close_notify, so bytes may be missing.
        if stack.read_finished(conn) && !self.close_notify_received && self.opened.is_none() {
            self.error = self.error.or(Some(ChannelError::Truncated));
        }
        // A record in `opened` after the end of a user's bytes belongs to the next user.
        let has_unread =
            !self.plaintext_buf.is_empty() || self.opened.is_some() && !self.flow_ended;
        let has_unread = has_unread || plain.is_some_and(|plain| !plain.is_empty());
        if has_unread {
            // An error has to wait until the reader has the bytes that precede it.
            return Ok(());
        }
        self.finish_flow_if_read();
        // If the record that ends the user's bytes is missing, some of these bytes may be missing too, even after
        // a close_notify.
        if self.close_notify_received && self.incoming == Incoming::Flow {
            self.error = self.error.or(Some(ChannelError::Truncated));
        }
        match self.error {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// Tells the engine how subflows authenticate, once the peer has announced what it supports: a box in its
    /// ClientHello, a server in the parameters that its Finished confirms.
    fn agree_on_joins(
        &mut self,
        now: Instant,
        conn: ConnId,
        stack: &mut Stack,
    ) -> Result<(), ApiError> {
        if self.joins_use_secret.is_some() || self.awaits_server() {
            return Ok(());
        }
        let Some(peer_parameters) = self.session.quic_transport_parameters() else {
            return Ok(());
        };
        let drawn = self.server.as_mut().and_then(|s| s.join_secret.take());
        let auth = parameters::join_auth(drawn.as_ref(), peer_parameters);
        self.joins_use_secret = Some(auth != JoinAuth::Keys);
        self.peer_families = self
            .is_client()
            .then(|| parameters::families(peer_parameters));
        stack.set_join_auth(now, conn, auth)
    }

    /// Reads as [`Stack::read_with`] does. `drain` gets the bytes that an earlier `drain` left or, if there are
    /// none, newly decrypted bytes in scratch memory. Bytes that `drain` leaves go to
    /// [`plaintext_buf`](Self::plaintext_buf).
    pub(in crate::channel) fn read_with<E: From<ApiError> + From<ChannelError>>(
        &mut self,
        now: Instant,
        conn: ConnId,
        stack: &mut Stack,
        drain: impl FnOnce(&[IoSlice<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        if !self.plaintext_buf.is_empty() {
            self.drive::<E>(now, conn, stack, None)?;
            let taken = drain(&[IoSlice::new(&self.plaintext_buf)]);
            self.plaintext_buf.drain(..*taken.as_ref().unwrap_or(&0));
            if self.plaintext_buf.is_empty() {
                // Release the memory, so that an idle connection keeps none.
                self.plaintext_buf = Zeroizing::default();
            }
            self.finish_flow_if_read();
            return taken;
        }
        let endpoint = Arc::clone(&self.endpoint);
        endpoint.scratch.with(|memory| {
            let mut plain = PlaintextBuf::new(memory);
            let driven = self.drive(now, conn, stack, Some(&mut plain));
            if plain.is_empty() {
                driven?;
                if self.flow_ended && self.incoming == Incoming::Messages {
                    // The peer ended a user's bytes while box and server exchange messages.
                    self.fail(ChannelError::Damaged);
                    self.flush(now, conn, stack)?;
                    return Err(ChannelError::Damaged.into());
                }
                return Ok(0);
            }
            let taken = driven.and_then(|()| drain(&[IoSlice::new(plain.bytes())]));
            let taken_len = *taken.as_ref().unwrap_or(&0);
            self.plaintext_buf
                .extend_from_slice(&plain.bytes()[taken_len..]);
            self.finish_flow_if_read();
            taken
        })
    }

    /// Stores the error that the received bytes caused, and queues an alert for the peer.
    fn fail(&mut self, error: ChannelError) {
        self.error = self.error.or(Some(error));
        let alert = self.session.alert().or(error.alert());
        if let Some(alert) = alert {
            // The level of every alert but close_notify (RFC 8446 section 6).
            const FATAL: u8 = 2;
            // While a server reads early data, it would take the alert for early data.
            self.queue_end_of_early_data();
            self.queue_record(ContentType::Alert, &[FATAL, alert.into()]);
        }
    }

    /// Processes the record in [`opened`](Self::opened), unless it still has to wait.
    fn deliver_opened(&mut self, plain: &mut Option<&mut PlaintextBuf<'_>>) {
        let Some(opened) = &self.opened else {
            return;
        };
        let len = opened.bytes.len();
        let fits = plain.as_ref().is_none_or(|plain| plain.has_room(len));
        if !fits || self.must_wait(opened.content, plain.is_some()) {
            return;
        }
        let Some(Opened { content, bytes }) = self.opened.take() else {
            return;
        };
        match (content, plain) {
            (ContentType::FlowEnd, _) => self.flow_ended = true,
            (_, Some(plain)) if !self.discards_flow() => {
                if let Some(room) = plain.room(len) {
                    room.copy_from_slice(&bytes);
                    plain.commit(len);
                }
            }
            _ => {}
        }
    }

    /// Returns whether no reader will take users' bytes any more, because this end closes the connection and its
    /// last user's bytes have ended.
    fn discards_flow(&self) -> bool {
        self.is_closing() && self.has_flow_ended()
    }

    /// Returns whether a record has to wait. It waits for a reader, or for the next user if the current user's
    /// bytes have ended.
    fn must_wait(&self, content: ContentType, has_reader: bool) -> bool {
        content.is_flow() && !self.discards_flow() && (self.flow_ended || !has_reader)
    }

    /// Opens records while `plain` has room for their payload. The content type is encrypted, so a record has to
    /// be opened to see whether it has to wait. The first record that has to wait is kept in
    /// [`opened`](Self::opened); the records after it stay in the engine.
    fn read_records(
        &mut self,
        input: &mut Input<'_, '_>,
        plain: &mut Option<&mut PlaintextBuf<'_>>,
    ) -> Result<(), ChannelError> {
        while !self.close_notify_received {
            if self.opened.is_some() {
                return Ok(());
            }
            let Some(header) = self.next_header(*input)? else {
                self.buffer_partial(input);
                return Ok(());
            };
            let size = HEADER_LEN + header.body_len;
            if self.read_level != EncryptionLevel::Traffic
                && self.handshake_bytes + size > MAX_BYTES_BEFORE_TRAFFIC_KEYS
            {
                return Err(ChannelError::Damaged);
            }
            let has_reader = plain.is_some();
            let fits = |plain: &&mut PlaintextBuf<'_>| plain.has_room(header.body_len);
            if !plain.as_ref().is_none_or(fits) {
                return Ok(());
            }
            if self.partial.len() + input.remaining() < size {
                self.buffer_partial(input);
                return Ok(());
            }
            // Without a reader the body needs memory of its own.
            let mut own_memory = Zeroizing::new(Vec::new());
            let body = match plain.as_mut().and_then(|plain| plain.room(header.body_len)) {
                Some(body) => body,
                None => {
                    own_memory.resize(header.body_len, 0);
                    &mut own_memory[..]
                }
            };
            self.read_body(input, body);
            let level = self.level(&header)?;
            let Some((content, len)) = self.open_record(level, &header, body)? else {
                continue;
            };
            if !content.is_flow() {
                self.process_control(level, content, &body[..len])?;
                continue;
            }
            if content == ContentType::Data && len == 0
                || content == ContentType::FlowEnd && len > 0
            {
                return Err(ChannelError::Damaged);
            }
            // The end of the handshake follows early data in the stream. Early data therefore goes to
            // `plaintext_buf` instead of waiting for a reader; the limit of early data bounds the buffer.
            if self.must_wait(content, has_reader || level == EncryptionLevel::Early) {
                let bytes = Zeroizing::new(body[..len].to_vec());
                self.opened = Some(Opened { content, bytes });
            } else if content == ContentType::FlowEnd {
                self.flow_ended = true;
            } else if !self.discards_flow() {
                match plain {
                    Some(plain) => plain.commit(len),
                    None => self.plaintext_buf.extend_from_slice(&own_memory[..len]),
                }
            }
        }
        // Bytes after close_notify are ignored (RFC 8446 section 6.1).
        input.skip();
        Ok(())
    }

    /// Returns the level at which the peer has to have sealed a record, from its outer type and the progress of
    /// the handshake.
    fn level(&self, header: &Header) -> Result<EncryptionLevel, ChannelError> {
        match (header.outer, self.read_level) {
            (ContentType::Handshake | ContentType::Alert, EncryptionLevel::Plaintext) => {
                Ok(EncryptionLevel::Plaintext)
            }
            (ContentType::Data, EncryptionLevel::Handshake) if self.incoming_keys.has_early() => {
                Ok(EncryptionLevel::Early)
            }
            (
                ContentType::Data,
                level @ (EncryptionLevel::Handshake | EncryptionLevel::Traffic),
            ) => Ok(level),
            _ => Err(ChannelError::Damaged),
        }
    }

    /// Processes a record that contains no user's bytes.
    fn process_control(
        &mut self,
        level: EncryptionLevel,
        content: ContentType,
        bytes: &[u8],
    ) -> Result<(), ChannelError> {
        match (content, level) {
            (
                ContentType::Alert,
                EncryptionLevel::Plaintext | EncryptionLevel::Handshake | EncryptionLevel::Traffic,
            ) => match *bytes {
                // TLS 1.3 ignores the level byte (RFC 8446 section 6). Description 0 is close_notify. At a lower
                // level close_notify counts as an error, because anybody could forge it.
                [_, 0] if level == EncryptionLevel::Traffic => self.close_notify_received = true,
                [_, alert] => return Err(classify_alert(level, alert.into())),
                _ => return Err(ChannelError::Damaged),
            },
            (ContentType::Handshake, EncryptionLevel::Early) if bytes == END_OF_EARLY_DATA => {
                self.incoming_keys.forget_early();
            }
            (ContentType::Handshake, EncryptionLevel::Early) => return Err(ChannelError::Damaged),
            (ContentType::Handshake, EncryptionLevel::Traffic) if record::is_key_update(bytes) => {
                if !self.incoming_keys.may_rekey(&self.outgoing_keys) {
                    return Err(ChannelError::Damaged);
                }
                let next = self.next_keys.as_mut().ok_or(ChannelError::Damaged)?;
                self.incoming_keys.replace_key(next.remote()?);
            }
            (ContentType::Handshake, _) => self.read_handshake(bytes)?,
            _ => return Err(ChannelError::Damaged),
        }
        Ok(())
    }

    /// Returns the header of the next record without consuming it, or `None` while a part of the header is
    /// missing.
    fn next_header(&self, mut input: Input<'_, '_>) -> Result<Option<Header>, ChannelError> {
        let mut bytes = [0; HEADER_LEN];
        let buffered = self.partial.len().min(HEADER_LEN);
        bytes[..buffered].copy_from_slice(&self.partial[..buffered]);
        match buffered + input.read(&mut bytes[buffered..]) {
            HEADER_LEN => match Header::read(bytes) {
                // If the first bytes from the peer are no TLS record, the peer is no Braid server.
                Err(_) if self.read_level == EncryptionLevel::Plaintext && self.is_client() => {
                    Err(ChannelError::Incompatible)
                }
                header => header.map(Some),
            },
            _ => Ok(None),
        }
    }

    /// Buffers the rest of the input. The rest is less than a record.
    fn buffer_partial(&mut self, input: &mut Input<'_, '_>) {
        while let chunk @ [_, ..] = input.chunk(usize::MAX) {
            self.partial.extend_from_slice(chunk);
        }
    }

    /// Copies the body of a record into `body` and consumes header and body. The whole record must have arrived,
    /// partly in [`partial`](Self::partial) and partly in `input`.
    fn read_body(&mut self, input: &mut Input<'_, '_>, body: &mut [u8]) {
        let partial = core::mem::take(&mut self.partial);
        match partial.get(HEADER_LEN..) {
            Some(buffered) => {
                body[..buffered.len()].copy_from_slice(buffered);
                input.read(&mut body[buffered.len()..]);
            }
            None => {
                input.read(&mut [0; HEADER_LEN][partial.len()..]);
                input.read(body);
            }
        }
    }

    /// Opens a record. Returns `None` if it is early data that this server skips.
    fn open_record(
        &mut self,
        level: EncryptionLevel,
        header: &Header,
        body: &mut [u8],
    ) -> Result<Option<(ContentType, usize)>, ChannelError> {
        if self.read_level != EncryptionLevel::Traffic {
            self.handshake_bytes += HEADER_LEN + body.len();
        }
        if level == EncryptionLevel::Plaintext {
            return Ok(Some((header.outer, body.len())));
        }
        match self.incoming_keys.open(level, header, body) {
            Ok((content, len)) => {
                // Users' bytes have to wait until the handshake has authenticated both ends.
                let allowed = match level {
                    EncryptionLevel::Handshake => !content.is_flow(),
                    _ => true,
                };
                if let Some(server) = &mut self.server {
                    server.skips_early = false;
                    server.ticket_proved |= level == EncryptionLevel::Early;
                }
                allowed
                    .then_some(Some((content, len)))
                    .ok_or(ChannelError::Damaged)
            }
            // A record that does not open may be early data under an unknown key (RFC 8446 section 4.2.10).
            // Nothing is lost, because the client sends rejected early data again.
            Err(_) if level == EncryptionLevel::Handshake && self.skips_early() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Processes handshake messages of TLS.
    fn read_handshake(&mut self, messages: &[u8]) -> Result<(), ChannelError> {
        // After the handshake only a server sends further messages (tickets). RFC 8446 section 5.1 forbids empty
        // handshake records.
        let is_unexpected = self.read_level == EncryptionLevel::Traffic && !self.is_client();
        if is_unexpected || messages.is_empty() {
            return Err(ChannelError::Damaged);
        }
        self.read_tls_messages(messages)?;
        // Queue the answer before the versions are compared, so that the box learns the server's versions even if
        // the two have none in common.
        self.write_handshake();
        self.agree_on_version()?;
        if self.read_level == EncryptionLevel::Handshake && !self.session.is_handshaking() {
            self.read_level = EncryptionLevel::Traffic;
            self.outgoing_keys.forget_handshake();
            self.incoming_keys.forget_handshake();
            self.queue_rejected_first_flight();
        }
        Ok(())
    }

    /// Returns whether the client may send early data that this server has to skip.
    fn skips_early(&self) -> bool {
        self.server.as_ref().is_some_and(|s| s.skips_early)
    }

    /// Computes the version and the features that both ends use, once the peer has announced its own.
    fn agree_on_version(&mut self) -> Result<(), ChannelError> {
        if self.agreed.is_some() || self.awaits_server() {
            return Ok(());
        }
        let Some(peer_parameters) = self.session.quic_transport_parameters() else {
            return Ok(());
        };
        let (ours, theirs) = (
            self.endpoint.versions,
            parameters::versions(peer_parameters),
        );
        let agreed = theirs.and_then(|theirs| ours.agree(theirs));
        if self.is_client() {
            self.endpoint.note_agreed(agreed);
        }
        self.agreed = agreed;
        match agreed {
            Some(_) => Ok(()),
            None => Err(ChannelError::OtherVersions { ours, theirs }),
        }
    }

    /// Passes messages to rustls. At a server, a ClientHello that proves its ticket's secret uses the ticket up.
    /// This happens before the server reads any early data under the ticket.
    fn read_tls_messages(&mut self, messages: &[u8]) -> Result<(), ChannelError> {
        let is_client_hello = self.read_level == EncryptionLevel::Plaintext;
        let mut server = self.server.as_mut().filter(|_| is_client_hello);
        if let Some(server) = &server {
            server.tickets.begin_client_hello();
        }
        let read = self.session.read_hs(messages);
        if let Some(server) = &mut server {
            let resumed = self.session.handshake_kind() == Some(HandshakeKind::Resumed);
            let presented = server
                .tickets
                .finish_client_hello(read.is_ok() && resumed)?;
            server.skips_early = presented && self.session.zero_rtt_keys().is_none();
        }
        Ok(read?)
    }
}

/// Classifies a received alert. A server encrypts the alert about an unknown key. Anybody can forge the same alert
/// in plaintext, so a plaintext alert gets no special class.
fn classify_alert(level: EncryptionLevel, alert: AlertDescription) -> ChannelError {
    match rustls::Error::AlertReceived(alert).into() {
        ChannelError::Refused if level == EncryptionLevel::Plaintext => ChannelError::Alert(alert),
        error => error,
    }
}
