//! Why a connection ended: the first event that made it end, by the letters of HAProxy's
//! termination state (its configuration manual, section "Session state at disconnection").

kit::reasons! {
    /// What ended a connection.
    pub enum Cause: "connections" {
        Normal = 0, "normal", "Both sides ended, each by a FIN, with every byte delivered.";
        Client = 1, "client",
            "The client reset it, closed before it could be relayed, or took no more bytes.";
        Server = 2, "server",
            "The backend reset it, refused it, or took no more bytes; or none could be asked.";
        Proxy = 3, "proxy", "The relay turned it away: a bad PROXY header, a rule, a limit.";
        Resource = 4, "resource", "The relay ran out of something: open files, ports, memory.";
        Internal = 5, "internal", "An error of the relay's own.";
        ClientTimeout = 6, "client_timeout", "The client did nothing for the time that it had.";
        ServerTimeout = 7, "server_timeout", "The backend did nothing for the time that it had.";
        Killed = 8, "killed", "The relay ended, or was told to end the connection.";
    }
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
