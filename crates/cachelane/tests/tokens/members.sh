# What runs with tokens alone: to be run by in_user_namespace.py, with the command as $0. It prints counters.
set -eu
ip link set lo up
# Whoever reads what is printed is not kept waiting by what goes on.
unshare -n sleep 600 >/dev/null 2>&1 &
peer=$!
trap 'kill $peer' EXIT
for link in lent steered; do
	ip link add $link type veth peer name far
	# Until it is in the other one, the namespace is not there.
	until [ "$(readlink /proc/$peer/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.1; done
	ip link set far netns $peer name $link
	ip link set $link up
	nsenter -t $peer -n ip link set $link up
done
ip address add 10.9.0.1/24 dev lent
nsenter -t $peer -n ip address add 10.9.0.2/24 dev lent
python3 -c '
import socket
server = socket.create_server(("127.0.0.1", 81))
while True:
    client, _ = server.accept()
    with client:
        while data := client.recv(65536):
            client.sendall(data)
' >/dev/null 2>&1 &
server=$!
cat >up.toml <<END
[relay.web]
listen = "127.0.0.1:80"
to = "127.0.0.1:81"
engine = "sockmap"
[lend.dns]
interface = "lent"
socket = "dns.lend"
udp-port = 53
filter = "udp and dst host 10.9.0.1"
frames = 3584
quota = 512
[steer.in]
interface = "steered"
priority = 0
force = true
END
"$0" up -c up.toml &
daemon=$!
trap 'kill $daemon; wait $daemon || true; kill $server $peer' EXIT
for look in $(seq 300); do
	"$0" up --status >status && break
	[ "$look" != 300 ] || { cat status && exit 1; }
	sleep 0.2
done
"$0" borrow dns.lend --for 8s --json >borrowed &
borrower=$!
# Packets for as long as it takes them.
nsenter -t $peer -n python3 -c '
import socket, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(6000):
    sender.sendto(b"lent", ("10.9.0.1", 53))
    time.sleep(0.01)
' >/dev/null 2>&1 &
sender=$!
wait $borrower
kill $sender
python3 -c '
import socket
client = socket.create_connection(("127.0.0.1", 80))
for _ in range(200):
    client.sendall(b"relayed" * 1000)
    got = 0
    while got < 7000:
        got += len(client.recv(65536))
'
cat status borrowed
"$0" knob list --counters
