# What a reader's host has besides its network: run in mounts of its own, with the folder
# of the test and the command. Then it is the shell into which the commands are typed.
set -e
mount --make-rprivate /
mount --bind "$1" /mnt
mount -t sysfs sysfs /sys

program=/mnt/cachelane
touch $program
mount --bind "$2" $program
for dir in /run /var/lib /usr/local/bin /root; do
	mount -t tmpfs -o mode=755 tmpfs $dir
done
touch /usr/local/bin/cachelane
mount --bind "$2" /usr/local/bin/cachelane
umount $program

mkdir /run/etc
cp -a /etc/. /run/etc
mount --bind /run/etc /etc
mkdir -p /etc/cachelane /var/lib/prometheus/node-exporter /var/log /run/lock
rm -f /etc/cachelane/*
echo 'reader:x:1000:1000::/tmp:/bin/bash' >>/etc/passwd
printf 'reader:x:1000:\ndns:x:1001:reader\ncapture:x:1003:reader\npostgres:x:1002:\n' >>/etc/group
printf '10.0.0.5 db1\n10.0.0.6 app2\n' >>/etc/hosts
echo 10.99.0.0/16 >/etc/blocked

mount -t tmpfs -o mode=1777 tmpfs /tmp
mkdir -m 777 /tmp/page
cd /tmp/page

unset CACHELANE_RUNTIME_DIR CACHELANE_LOG NOTIFY_SOCKET TMPDIR XDG_RUNTIME_DIR
export PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 NO_COLOR=1
# Background jobs heed Ctrl-C, as they do where people type.
set +e -m
echo ready
while IFS= read -r line; do
	eval "$line"
done
