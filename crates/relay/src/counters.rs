//! What a relay counts. One set of counters a worker, summed when somebody asks.

kit::counters! {
    /// The sums over all workers.
    pub struct Stats of #[repr(align(128))] Counters {
        accepted: "connections", "Connections accepted from clients.";
        closed: "connections", "Connections that ended with every byte delivered both ways.";
        reset: "connections",
            "Connections that ended by a reset, from either side or by the relay.";
        denied: "connections", "Clients refused because --allow and --deny do not let them in.";
        over_client_connections: "connections",
            "Clients refused because they had --client-connections already.";
        over_client_rate: "connections",
            "Clients refused because they made connections faster than --client-rate.";
        no_route: "connections",
            "Clients refused because their TLS handshake names no backend, or did not come.";
        no_backend: "connections", "Clients refused because no backend could be reached.";
        connect_failed: "attempts", "Attempts to reach a backend that failed.";
        queued: "connections", "Connections that waited because all backends were full.";
        queue_full: "connections", "Clients refused because too many waited for a backend.";
        queue_timeout: "connections", "Clients refused because no backend had a place in time.";
        connect_local: "attempts",
            "Attempts to reach a backend that this host could not make: no port, no route, a rule.";
        idle_timeout: "connections",
            "Connections reset because nothing moved for the idle timeout.";
        client_timeout: "connections",
            "Connections reset because the client did nothing for the client timeout.";
        server_timeout: "connections",
            "Connections reset because the backend did nothing for the server timeout.";
        half_closed_timeout: "connections",
            "Connections reset because one side had ended and nothing moved for the half-closed timeout.";
        bad_proxy_header: "connections",
            "Clients refused because their PROXY header was bad or late.";
        limit_reached: "times", "Times accepting paused because the connection limit was reached.";
        queue_reset: "connections",
            "Connections reset in the listen queue, because the relay ended before it could accept them.";
        no_files: "times", "Times accepting or connecting failed because open files ran out.";
        turned_away: "connections",
            "Clients that got a reset because open files had run out.";
        pipes_short: "times", "Times a flow was copied because the splice engine had no pipe left.";
        bytes_up: "bytes", "Bytes forwarded from clients to backends.";
        bytes_down: "bytes", "Bytes forwarded from backends to clients.";
        bytes: "bytes", "Bytes forwarded, both ways.";
        bytes_under_engine: "bytes",
            "Of these, bytes that moved as the present value of relay.engine has them move.";
        bytes_under_cpus: "bytes",
            "Of these, bytes of connections that run where the present value of relay.cpus has them.";
        bytes_copied: "bytes", "Bytes that the copy engine forwarded.";
        bytes_spliced: "bytes", "Bytes that the splice engine forwarded.";
        bytes_redirected: "bytes", "Bytes that the sockmap engine forwarded in the kernel.";
        sockmap_taken: "directions", "Directions handed to the sockmap engine.";
        sockmap_held: "times",
            "Times the sockmap governor sent data the slow way because the budget was used up.";
        sockmap_trimmed: "bytes",
            "Bytes that came twice and were cut off by the sockmap engine: part of retransmissions.";
        access_log_lost: "lines",
            "Lines of the access log that were lost: it could not be written, or not fast enough.";
        relieved: "times",
            "Times a flow read on into its reserve because both directions stood still.";
        backpressure: "times", "Times a flow found its destination full and waited.";
    }
}
