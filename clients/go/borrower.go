//go:build linux

// Package lend is a borrower for cachelane lend: it receives packets from a lender's memory,
// without a copy.
//
// A lender receives packets and lends them to programs that open its Unix socket. A Borrower maps
// the lender's memory, gets each packet as a Loan, reads its bytes where they lie, and gives the
// loan back. It needs Linux and the right to open the socket, and does not use cgo.
//
// # It trusts its lender
//
// The lender writes the memory that a borrower reads. A Borrower checks what it is handed, so that
// a lender that is out of step is an error, and no read outside the memory. But that bytes stay as
// they are while they are on loan is the lender's word; connect to sockets of lenders that you
// trust. Once the lender is gone, bytes of loans that you kept may change.
//
// # Loans that are not given back
//
// They count against this borrower's quota and nobody else's. A borrower with its quota used up is
// lent nothing more, and what is meant for it is dropped (Borrower.Dropped). When the connection
// ends, however it ends, the lender takes back everything.
package lend

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// A Borrower is a connection to a lender.
//
// All methods can be called from any goroutine, but only one at a time can be in Wait. So other
// goroutines can read packets and give them back. A lock guards a Borrower: to use several CPUs,
// give each goroutine a Borrower of its own. The lender shares the flows out among them.
//
// The lender's memory stays mapped until Close. Receive, Bytes and GiveBack do not allocate, nor
// does Wait, unless its time is over.
type Borrower struct {
	area  area
	quota uint32
	flags uint32
	bell  *bell
	// Nothing of the area is mapped any more.
	isUnmapped atomic.Bool

	// The mutex guards what follows, and so the memories out and back.
	mutex     sync.Mutex
	channels  []channel
	out, back []byte
	// The first word of back.
	asleep *uint32
	// What that word is while nobody sleeps.
	awake uint32
	// The channel that comes first next time.
	first int
	// A goroutine is at the bell. It has let go of the mutex.
	isWaiting bool
	// The bell has said that the lender is gone.
	isGone   bool
	isClosed bool
	// What Dropped says once it is closed.
	droppedAtEnd uint64
}

const notOurs = "lend: a loan of another borrower"

// A Wait is what a wait came to.
type Wait int

const (
	// Ready means that there is something to receive.
	Ready Wait = iota + 1
	// TimedOut means that nothing came in that time.
	TimedOut
	// Closed means that the lender has ended, everything that it lent was received, and nothing
	// will follow.
	Closed
)

func (w Wait) String() string {
	switch w {
	case Ready:
		return "ready"
	case TimedOut:
		return "timed out"
	case Closed:
		return "closed"
	default:
		return "failed"
	}
}

// Receive receives whole packets, as many as there are and fit into the places of into. The parts
// of a packet follow each other. It takes from the channels in turn, says how many loans there
// were, and does not wait.
//
// With an error, the loans that it counts are good. ErrProtocol means that what the lender has
// written makes no sense, and that the connection is of no use any more; io.ErrShortBuffer that the
// first packet has more parts than there are places: 18 are enough for any; net.ErrClosed that the
// Borrower is closed.
func (b *Borrower) Receive(into []Loan) (int, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.isClosed {
		return 0, errClosed
	}
	if len(into) == 0 {
		return 0, nil
	}
	channels, first := len(b.channels), b.first
	b.first = (first + 1) % channels
	filled, isTooLong := 0, false
	// A share for each; then whatever is there, for those that have more.
	shares := [2]int{(len(into) + channels - 1) / channels, len(into)}
	for turn := 0; turn < len(shares) && turn < channels; turn++ {
		for at := 0; at < channels && filled < len(into); at++ {
			c := &b.channels[(first+at)%channels]
			taken, isLong, err := c.take(&b.area, into[filled:], shares[turn])
			filled += taken
			if err != nil {
				return filled, err
			}
			isTooLong = isTooLong || isLong
		}
	}
	if filled == 0 && isTooLong {
		return 0, errShort
	}
	return filled, nil
}

// Bytes gives the bytes of a loan, in the lender's memory: no copy. They stay there until the loan
// is given back, even if the Borrower is closed before that. They cannot be written: a write is a
// fault that ends the program.
//
// It panics if the loan is another Borrower's.
func (b *Borrower) Bytes(loan Loan) []byte {
	if loan.borrower != b.area.borrower {
		panic(notOurs)
	}
	if b.isUnmapped.Load() {
		panic("lend: the bytes of a loan that was given back")
	}
	end := loan.addr + uint64(loan.len)
	return b.area.bytes[loan.addr:end:end]
}

// GiveBack gives loans back, in any order, each once. The lender sees them all at once, so give
// back in batches.
//
// It panics if one is another Borrower's, or if more are given back than are out.
func (b *Borrower) GiveBack(loans ...Loan) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	for at := range loans {
		loan := &loans[at]
		if loan.borrower != b.area.borrower {
			panic(notOurs)
		}
		c := &b.channels[loan.channel]
		if c.onLoan == 0 {
			panic("lend: more loans are given back than are out")
		}
		c.onLoan--
		if !b.isClosed {
			c.put(loan.token)
		}
	}
	if b.isClosed {
		b.unmapUnused()
		return
	}
	for at := range b.channels {
		b.channels[at].publish()
	}
}

// Wait sleeps until there is something to receive, or the lender is gone, or the time is over. Less
// than 0 is no limit. With 0 it only looks, and costs the lender nothing: so a borrower that never
// sleeps learns that the lender is gone.
//
// Once everything was received, the error is ErrDied if the lender is gone and did not say that it
// ends, ErrDisconnected if it has disconnected this borrower for an offence, and ErrEvicted if it
// did so because this borrower had its quota and returned nothing for longer than borrowers may.
// ErrProtocol means that what the lender has written makes no sense, net.ErrClosed that the Borrower
// is closed, ErrWaiting that another goroutine is in Wait.
func (b *Borrower) Wait(timeout time.Duration) (Wait, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.isClosed {
		return 0, errClosed
	}
	if b.isWaiting {
		return 0, ErrWaiting
	}
	there, err := b.look()
	if err != nil || there != TimedOut {
		return there, err
	}
	if timeout == 0 {
		if _, err := b.heard(b.bell.look()); err != nil {
			return 0, err
		}
		return b.look()
	}
	var until time.Time
	if timeout > 0 {
		until = time.Now().Add(timeout)
	}
	for {
		slept, err := b.sleep(until)
		if err != nil {
			return 0, err
		}
		there, err := b.look()
		if err != nil || there != TimedOut || slept == TimedOut {
			return there, err
		}
	}
}

// Close ends the connection. The lender takes back everything at once. It can be called from any
// goroutine, and again: from then on Receive and Wait fail with net.ErrClosed, also in a goroutine
// that waits already.
//
// Bytes of loans that are out stay where they are, but may change. Give those loans back as ever:
// the lender's memory is unmapped after the last one, or else when the garbage collector finds that
// nobody has the Borrower any more.
func (b *Borrower) Close() error {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.isClosed {
		return nil
	}
	b.droppedAtEnd = b.countDropped()
	b.isClosed = true
	// Wakes one that waits. It comes back for the mutex, and then touches none of these.
	err := b.bell.conn.Close()
	b.asleep = nil
	for at := range b.channels {
		b.channels[at].forget()
	}
	unmap(b.out)
	unmap(b.back)
	b.out, b.back = nil, nil
	runtime.SetFinalizer(b, (*Borrower).unmapArea)
	b.unmapUnused()
	return err
}

// Dropped is how many packets the lender dropped because this borrower had its quota.
func (b *Borrower) Dropped() uint64 {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.isClosed {
		return b.droppedAtEnd
	}
	return b.countDropped()
}

// Out is how many loans were received and not given back.
func (b *Borrower) Out() int {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.countOut()
}

// Quota is the most loans at a time in each channel.
func (b *Borrower) Quota() int { return int(b.quota) }

// Channels is how many channels there are: as many as the lender has threads that receive.
func (b *Borrower) Channels() int { return len(b.channels) }

// FrameSize is the bytes of a frame: the most that a loan can have.
func (b *Borrower) FrameSize() int { return int(b.area.frameSize) }

// Frames is how many frames the lender has.
func (b *Borrower) Frames() int { return int(b.area.frames) }

// IsMirror says whether it gets every packet.
func (b *Borrower) IsMirror() bool { return b.flags&helloMirror != 0 }

// Group is the group whose borrowers share the packets out among themselves; of a mirror 0.
func (b *Borrower) Group() uint16 { return uint16(b.flags >> groupShift) }

// look says whether there is something to receive, or never will be; TimedOut if neither.
func (b *Borrower) look() (Wait, error) {
	// Before the rings: what was published before the end is seen after it.
	closed := 0
	for at := range b.channels {
		if atomic.LoadUint32(&b.channels[at].out.closed) != 0 {
			closed++
		}
	}
	for at := range b.channels {
		ready, err := b.channels[at].ready()
		if err != nil {
			return 0, err
		}
		if ready > 0 {
			return Ready, nil
		}
	}
	if !b.isGone && closed < len(b.channels) {
		return TimedOut, nil
	}
	// It was stored before closed, and before the socket's end.
	switch atomic.LoadUint32(&b.channels[0].out.ended) {
	case endingOffence:
		return 0, ErrDisconnected
	case endingEvicted:
		return 0, ErrEvicted
	case endingUnsaid:
		// A lender of version 2 has no word for it.
		if closed == 0 {
			return 0, ErrDied
		}
	}
	return Closed, nil
}

// sleep sleeps once, unless there is something already: TimedOut if the time is over.
func (b *Borrower) sleep(until time.Time) (Wait, error) {
	// The lender stores a ring's producer (L0), fences, and then loads asleep (L1). Here the order
	// is: S0 stores asleep, S1 loads producer. Both are sequentially consistent, so S1 does not come
	// before S0, and either S1 sees what L0 stored or L1 sees what S0 stored. Otherwise this could
	// sleep on a loan.
	atomic.StoreUint32(b.asleep, b.awake+1)
	there, err := b.look()
	if err == nil && there == TimedOut {
		b.isWaiting = true
		b.mutex.Unlock()
		what, failed := b.bell.wait(until)
		b.mutex.Lock()
		b.isWaiting = false
		// Before anything else: the memories are not there then.
		if b.isClosed {
			return 0, errClosed
		}
		there, err = b.heard(what, failed)
	}
	b.awake += 2
	atomic.StoreUint32(b.asleep, b.awake)
	return there, err
}

// heard is what follows from what the bell has said.
func (b *Borrower) heard(what sound, err error) (Wait, error) {
	switch {
	case err != nil:
		return 0, &fault{text: "cannot wait for the lender", cause: err}
	case what == silent:
		return TimedOut, nil
	case what == gone:
		b.isGone = true
	}
	return Ready, nil
}

func (b *Borrower) countDropped() (dropped uint64) {
	for at := range b.channels {
		dropped += atomic.LoadUint64(&b.channels[at].out.dropped)
	}
	return dropped
}

func (b *Borrower) countOut() (out int) {
	for at := range b.channels {
		out += b.channels[at].onLoan
	}
	return out
}

// unmapUnused unmaps the area of a closed Borrower once nothing is out.
func (b *Borrower) unmapUnused() {
	if b.countOut() == 0 {
		runtime.SetFinalizer(b, nil)
		b.unmapArea()
	}
}

// unmapArea unmaps the area, once.
func (b *Borrower) unmapArea() {
	if b.isUnmapped.CompareAndSwap(false, true) {
		unmap(b.area.bytes)
	}
}
