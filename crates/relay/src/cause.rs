//! Why a connection ended: the first event that made it end, by the letters of HAProxy's
//! termination state (its configuration manual, section "Session state at disconnection").

/// What ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Both sides, each by a FIN, with every byte delivered.
    Normal,
    /// The client reset it, closed before it could be relayed, or took no more bytes.
    Client,
    /// The backend reset it, refused it, or took no more bytes; or no backend could be asked.
    Server,
    /// The relay turned it away: a bad PROXY header, a rule, a limit.
    Proxy,
    /// The relay ran out of something: open files, ports, memory.
    Resource,
    /// An error of the relay's own.
    Internal,
    /// The client did nothing for the time that it had.
    ClientTimeout,
    /// The backend did nothing for the time that it had.
    ServerTimeout,
    /// The relay ended, or was told to end the connection.
    Killed,
}

impl Cause {
    /// HAProxy's letter.
    pub fn letter(self) -> char {
        match self {
            Cause::Normal => '-',
            Cause::Client => 'C',
            Cause::Server => 'S',
            Cause::Proxy => 'P',
            Cause::Resource => 'R',
            Cause::Internal => 'I',
            Cause::ClientTimeout => 'c',
            Cause::ServerTimeout => 's',
            Cause::Killed => 'K',
        }
    }
}
