//go:build linux

package lend

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// Options is what a borrower asks its lender for. The zero value is a good choice.
type Options struct {
	// Name is what it is called in the lender's tables: UTF-8, up to 48 bytes. If it is empty, the
	// process's name.
	Name string
	// Quota is the most loans that it wants to have at a time in each channel. 0 leaves it to the
	// lender, which can also give less than is asked for.
	Quota uint32
	// Mirror asks for every packet, beside the borrowers that share them out among themselves. A
	// lender that keeps ledgers refuses that.
	Mirror bool
	// Group is the group whose borrowers share the packets out among themselves. Each group gets
	// all packets. A lender that keeps ledgers refuses all but 0, and so does one of version 2. A
	// mirror is in no group: leave it 0.
	Group uint16
	// Timeout is how long to wait for the lender's answer. 0 or less is 2 seconds.
	Timeout time.Duration
	// Patience is how long to go on trying, every 100 ms, while there is no lender, or it has no
	// room. 0 is to try once, less than 0 is no limit. To go on after a lender's end, close the
	// Borrower and connect with patience.
	Patience time.Duration
}

const (
	// How long to wait for an answer, if the options do not say.
	defaultTimeout = 2 * time.Second
	// Until a lender is tried again, and one that has too many connections to accept.
	pause, shortPause = 100 * time.Millisecond, 10 * time.Millisecond
	// Bytes of a path that fit into a socket's address.
	pathMax = 107
)

// numbers counts the Borrowers of this process. A Loan that nobody received has 0.
var numbers atomic.Uint32

// Connect connects to the lender that listens on the socket path.
//
// For errors.Is, its errors are ErrNoLender if there is no such socket or nobody listens there,
// fs.ErrPermission if the caller may not open it, ErrDied if the lender closed and did not say why,
// os.ErrDeadlineExceeded if it did not answer in time, ErrProtocol if what listens there is no
// lender, and ErrInvalid for options or a path that cannot be used. If the lender refuses, the
// error is a *RefusedError.
func Connect(path string, options Options) (*Borrower, error) {
	return ConnectContext(context.Background(), path, options)
}

// ConnectContext is Connect, but ends with the context's error once the context is done. After it
// has connected, the context means nothing to the Borrower.
func ConnectContext(ctx context.Context, path string, options Options) (*Borrower, error) {
	hello, err := options.hello()
	if err != nil {
		return nil, err
	}
	if path == "" || len(path) > pathMax || strings.ContainsRune(path, 0) {
		return nil, &fault{text: path + ": no path of a socket", kind: ErrInvalid}
	}
	timeout := options.Timeout
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	giveUp := time.Now().Add(options.Patience)
	for {
		p := peer{path: path, timeout: timeout, until: time.Now().Add(timeout)}
		b, err := p.connect(ctx, &hello)
		if err == nil {
			return b, nil
		}
		if ctx.Err() != nil {
			return nil, &fault{text: path, cause: ctx.Err()}
		}
		isOver := options.Patience >= 0 && !time.Now().Before(giveUp)
		if isOver || !MayPass(err) {
			return nil, err
		}
		if !sleep(ctx, pause) {
			return nil, &fault{text: err.Error(), cause: ctx.Err()}
		}
	}
}

func (o *Options) hello() (hello, error) {
	said := hello{
		magic:      magic,
		versionMin: versionMin,
		versionMax: versionMax,
		flags:      uint32(o.Group) << groupShift,
		quota:      o.Quota,
	}
	name := o.Name
	if name == "" {
		// It has at most 15 bytes.
		own, _ := os.ReadFile("/proc/self/comm")
		name = strings.TrimSpace(string(own))
	}
	if len(name) > len(said.name) || strings.ContainsRune(name, 0) {
		return said, &fault{kind: ErrInvalid, text: fmt.Sprintf("the name %q: expected at most %d "+
			"bytes, none of them zero", name, len(said.name))}
	}
	copy(said.name[:], name)
	if o.Mirror && o.Group != 0 {
		return said, &fault{kind: ErrInvalid, text: fmt.Sprintf("a mirror in group %d: a mirror "+
			"gets everything, and is in no group", o.Group)}
	}
	if o.Mirror {
		said.flags |= helloMirror
	}
	if o.Group != 0 {
		said.versionMin = versionGroups
	}
	return said, nil
}

// A peer is what we connect to, and how long that may take.
type peer struct {
	path    string
	timeout time.Duration
	until   time.Time
}

// connect connects, says hello, and maps what the lender hands out. After an error nothing is left
// of it.
func (p *peer) connect(ctx context.Context, said *hello) (b *Borrower, err error) {
	conn, err := p.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	if err := conn.SetDeadline(p.until); err != nil {
		return nil, p.failed("cannot wait", err)
	}
	defer interruptible(ctx, conn)()
	message := (*[unsafe.Sizeof(*said)]byte)(unsafe.Pointer(said))
	if _, err := conn.Write(message[:]); err != nil && !isHungUp(err) {
		return nil, p.failed("cannot say hello", err)
	}
	// Where it closed already, perhaps it said why.
	answer, descriptors, err := p.answer(conn)
	defer closeAll(descriptors)
	if err != nil {
		return nil, err
	}
	if err := p.check(answer); err != nil {
		return nil, err
	}
	if len(descriptors) != 3 {
		return nil, p.odd("%d descriptors", len(descriptors))
	}
	return p.join(conn, answer, descriptors)
}

func (p *peer) dial(ctx context.Context) (*net.UnixConn, error) {
	path := p.path
	if path[0] == '@' {
		// To the package net that is a name that is in no file system.
		path = "./" + path
	}
	for {
		// This never waits. What a socket that blocks would wait for is EAGAIN here: that the
		// lender accepts others.
		conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
		if err == nil {
			return conn, nil
		}
		if !errors.Is(err, syscall.EAGAIN) {
			return nil, p.noConnection(err)
		}
		if time.Until(p.until) <= 0 || !sleep(ctx, shortPause) {
			return nil, p.timedOut("did not accept")
		}
	}
}

func (p *peer) noConnection(err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return p.failed("cannot connect", err)
	}
	fault := p.failed("cannot connect", errno)
	switch errno {
	case syscall.ENOENT:
		fault.kind = ErrNoLender
		fault.text = p.path + ": there is no such socket: is the lender running?"
	case syscall.ECONNREFUSED:
		fault.kind = ErrNoLender
		fault.text = p.path + ": nobody listens there: is the lender running?"
	case syscall.EPROTOTYPE:
		fault.kind = ErrProtocol
		fault.text = p.path + ": that is another kind of socket"
	}
	return fault
}

// answer receives the lender's answer, and the descriptors with it, also if it fails.
func (p *peer) answer(conn *net.UnixConn) (*welcome, []int, error) {
	answer := new(welcome)
	message := (*[unsafe.Sizeof(*answer)]byte)(unsafe.Pointer(answer))
	control := make([]byte, syscall.CmsgSpace(3*4))
	for resets := 0; ; resets++ {
		// The package net receives descriptors with MSG_CMSG_CLOEXEC.
		got, gotControl, flags, _, err := conn.ReadMsgUnix(message[:], control)
		descriptors := descriptorsIn(control[:gotControl])
		switch {
		case got == len(message) && flags&(syscall.MSG_TRUNC|syscall.MSG_CTRUNC) == 0:
			return answer, descriptors, nil
		case got > 0:
			return nil, descriptors, p.odd("an answer of another size")
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, descriptors, p.timedOut("did not answer")
		case errors.Is(err, syscall.ECONNRESET) && resets == 0:
			// A lender that closed before it has read our hello resets the connection; what it said
			// comes after that.
			closeAll(descriptors)
		case err == nil || isEnd(err):
			return nil, descriptors, p.hungUp()
		default:
			return nil, descriptors, p.failed("no answer", err)
		}
	}
}

// join maps the lender's memories, says so, and waits until the lender lends to us.
func (p *peer) join(conn *net.UnixConn, said *welcome, descriptors []int) (b *Borrower, err error) {
	var memories [3][]byte
	defer func() {
		if err != nil {
			for _, memory := range memories {
				unmap(memory)
			}
		}
	}()
	lengths := [3]uint64{said.areaLen, said.outLen, said.backLen}
	for at, name := range [3]string{"area", "out", "back"} {
		memories[at], err = p.mapOne(name, descriptors[at], lengths[at], name == "back")
		if err != nil {
			return nil, err
		}
	}
	bell, err := newBell(conn)
	if err != nil {
		return nil, p.failed("cannot wait", err)
	}
	message := mapped{magic}
	bytes := (*[unsafe.Sizeof(message)]byte)(unsafe.Pointer(&message))
	if _, err := conn.Write(bytes[:]); err != nil && !isHungUp(err) {
		return nil, p.failed("cannot say that all is mapped", err)
	}
	// Where it closed already, perhaps it is about to end.
	what, err := bell.listen()
	switch {
	case err != nil:
		return nil, p.failed("cannot wait", err)
	case what == gone:
		return nil, p.hungUp()
	case what == silent:
		return nil, p.timedOut("did not take us in")
	}
	return newBorrower(said, memories, bell), nil
}

func (p *peer) mapOne(name string, fd int, length uint64, writable bool) ([]byte, error) {
	if !isSealed(fd) {
		return nil, p.odd("the memory '%s', which is not sealed", name)
	}
	var status syscall.Stat_t
	if err := syscall.Fstat(fd, &status); err != nil {
		return nil, p.failed("cannot map the memory '"+name+"'", err)
	}
	if status.Size < 0 || uint64(status.Size) < length {
		return nil, p.odd("the memory '%s' with fewer than %d bytes", name, length)
	}
	// check has seen that it is an int.
	memory, err := mapMemory(fd, int(length), writable)
	if err != nil {
		return nil, p.failed("cannot map the memory '"+name+"'", err)
	}
	return memory, nil
}

func newBorrower(said *welcome, memories [3][]byte, bell *bell) *Borrower {
	b := &Borrower{
		area: area{
			bytes:     memories[0],
			frameSize: said.frameSize,
			frames:    said.frames,
			borrower:  numbers.Add(1),
		},
		quota:    said.quota,
		flags:    said.flags,
		bell:     bell,
		channels: make([]channel, said.channels),
		out:      memories[1],
		back:     memories[2],
	}
	b.asleep = (*uint32)(unsafe.Pointer(&b.back[asleepAt]))
	for at := range b.channels {
		b.channels[at] = newChannel(b.out, b.back, said.slots, uint16(at))
	}
	return b
}
