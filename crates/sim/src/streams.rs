//! The streams of a host's open connections.

use braid_engine::ConnId;

use crate::traffic::Stream;

/// Streams by connection, in the order of the ids. A host looks at all streams in each of its turns, and usually has few,
/// so they are a list: the walk over a list is cheaper than over a tree, and the search costs little.
#[derive(Debug, Default)]
pub(crate) struct Streams(Vec<(ConnId, Stream)>);

impl Streams {
    fn position(&self, conn: ConnId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&conn, |(id, _)| *id)
    }

    pub fn get_mut(&mut self, conn: ConnId) -> Option<&mut Stream> {
        let at = self.position(conn).ok()?;
        Some(&mut self.0[at].1)
    }

    /// Adds the stream of a connection that has none.
    pub fn insert(&mut self, conn: ConnId, stream: Stream) {
        let at = self.position(conn).unwrap_or_else(|at| at);
        self.0.insert(at, (conn, stream));
    }

    pub fn remove(&mut self, conn: ConnId) -> Option<Stream> {
        let at = self.position(conn).ok()?;
        Some(self.0.remove(at).1)
    }

    pub fn iter(&self) -> impl Iterator<Item = (ConnId, &Stream)> {
        self.0.iter().map(|(id, stream)| (*id, stream))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (ConnId, &mut Stream)> {
        self.0.iter_mut().map(|(id, stream)| (*id, stream))
    }
}
