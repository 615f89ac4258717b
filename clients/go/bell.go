//go:build linux

package lend

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"
)

// A bell is the socket after the handshake: a message is a wake-up, and its end is the lender's.
// One goroutine at a time uses it, but for close.
type bell struct {
	conn *net.UnixConn
	raw  syscall.RawConn
	// read is made once, since making it for each call allocates.
	read func(fd uintptr)
	got  int
	err  error
	// A wake-up, whose content has no meaning.
	message [16]byte
	// The connection has a deadline, as it has after the handshake.
	isTimed bool
}

// What listening to a bell came to.
type sound int

const (
	silent sound = iota
	rang
	// The lender is gone.
	gone
)

func newBell(conn *net.UnixConn) (*bell, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	b := &bell{conn: conn, raw: raw, isTimed: true}
	b.read = func(fd uintptr) { b.got, b.err = syscall.Read(int(fd), b.message[:]) }
	return b, nil
}

// wait waits until it rings, or the time is over; the zero time is no limit. The goroutine waits in
// the runtime's poller and blocks no thread.
func (b *bell) wait(until time.Time) (sound, error) {
	if b.isTimed || !until.IsZero() {
		if err := b.conn.SetReadDeadline(until); err != nil {
			return silent, err
		}
		b.isTimed = !until.IsZero()
	}
	return b.listen()
}

// listen waits until it rings, or the time is over that was set before.
func (b *bell) listen() (sound, error) {
	// Takes the wake-up: the lender keeps a few that are not taken, and then sends none.
	got, err := b.conn.Read(b.message[:])
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return silent, nil
	}
	return heard(got, err)
}

// look is a wait that takes no time.
func (b *bell) look() (sound, error) {
	if err := b.raw.Control(b.read); err != nil {
		return silent, err
	}
	if b.err == syscall.EAGAIN {
		return silent, nil
	}
	return heard(b.got, b.err)
}

func heard(got int, err error) (sound, error) {
	switch {
	case err == nil && got > 0:
		return rang, nil
	case err == nil, isEnd(err):
		return gone, nil
	default:
		return silent, err
	}
}
