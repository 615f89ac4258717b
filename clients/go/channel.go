//go:build linux

package lend

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// # Memory ordering
//
// Operations of sync/atomic are sequentially consistent: there is one order of all of them, and
// each is also an acquire (a load) or a release (a store). So they are at least what the protocol
// asks for:
//
//   - the load of a ring's producer acquires the slots that the lender wrote before it;
//   - the store of our producer releases the tokens, and our last reads of the frames;
//   - the store of asleep and the loads of producer after it keep their order, as with a fence
//     between them. The lender has a fence between its store of producer and its load of asleep, so
//     one of the two sees the other (see Borrower.sleep).
//
// Slots and tokens are read and written plainly in between.

// A channel is one ring in each direction, as far as this side has come. The Borrower's mutex
// guards it.
type channel struct {
	out    *outHeader
	loans  []slot
	back   *backHeader
	tokens []uint32
	// Free-running: they wrap at 2^32.
	nextLoan, nextToken uint32
	// Loans that were received and not given back.
	onLoan int
	// Tokens are in the ring that were not published.
	unpublished bool
	number      uint16
}

// newChannel finds a channel in memories that are long enough.
func newChannel(out, back []byte, slots uint32, number uint16) channel {
	out = out[outChannel(slots, uint32(number)):]
	back = back[backChannel(slots, uint32(number)):]
	return channel{
		out:    (*outHeader)(unsafe.Pointer(&out[0])),
		loans:  unsafe.Slice((*slot)(unsafe.Pointer(&out[line])), int(slots)),
		back:   (*backHeader)(unsafe.Pointer(&back[0])),
		tokens: unsafe.Slice((*uint32)(unsafe.Pointer(&back[line])), int(slots)),
		number: number,
	}
}

// forget lets go of the memories.
func (c *channel) forget() {
	c.out, c.loans, c.back, c.tokens = nil, nil, nil, nil
}

// ready says how many loans there are to read.
func (c *channel) ready() (uint32, error) {
	// Acquire: partner of the lender's release. Without it a slot could be read before it is written.
	produced := atomic.LoadUint32(&c.out.producer)
	ready := produced - c.nextLoan
	if ready > uint32(len(c.loans)) {
		return 0, &fault{kind: ErrProtocol, text: fmt.Sprintf("the lender's ring index went from "+
			"%d to %d, more than its slots", c.nextLoan, produced)}
	}
	return ready, nil
}

// take fills places with whole packets, and stops after share, at the end of a packet. It says how
// many loans that were, and whether the first packet has more parts than there are places.
func (c *channel) take(area *area, into []Loan, share int) (whole int, isTooLong bool, err error) {
	ready, err := c.ready()
	if err != nil {
		return 0, false, err
	}
	at, mask := 0, uint32(len(c.loans)-1)
	for ; at < int(ready) && at < len(into) && whole < share; at++ {
		loan := c.loans[(c.nextLoan+uint32(at))&mask]
		if !area.has(&loan) {
			return 0, false, area.refusal(&loan)
		}
		place := &into[at]
		place.addr = loan.addr
		place.time = loan.time
		place.len = loan.len
		place.token = loan.token
		place.hash = loan.hash
		place.borrower = area.borrower
		place.channel = c.number
		place.flags = uint16(loan.flags)
		if loan.flags&loanMore == 0 {
			whole = at + 1
		}
	}
	c.nextLoan += uint32(whole)
	c.onLoan += whole
	return whole, whole == 0 && at == len(into) && int(ready) > at, nil
}

// put puts a token into the ring; the lender sees it after publish.
func (c *channel) put(token uint32) {
	c.tokens[c.nextToken&uint32(len(c.tokens)-1)] = token
	c.nextToken++
	c.unpublished = true
}

// publish shows the lender what was put in. Where nothing was, nothing is written: the lender reads
// that cache line all the time.
func (c *channel) publish() {
	if c.unpublished {
		c.unpublished = false
		// Release: partner of the lender's acquire. Without it the lender could see the index
		// before the tokens, or reuse a frame before our last read of it.
		atomic.StoreUint32(&c.back.producer, c.nextToken)
	}
}

// An area is where loans can lie.
type area struct {
	bytes     []byte
	frameSize uint32
	frames    uint32
	// Whose loans they are.
	borrower uint32
}

// has says whether a loan lies in one frame.
func (a *area) has(loan *slot) bool {
	offset := loan.addr & uint64(a.frameSize-1)
	isInArea := loan.addr < uint64(a.frames)*uint64(a.frameSize)
	isInFrame := offset+uint64(loan.len) <= uint64(a.frameSize)
	return isInArea && isInFrame && loan.len > 0
}

func (a *area) refusal(loan *slot) error {
	return &fault{kind: ErrProtocol, text: fmt.Sprintf("the lender lent %d bytes at %d, which is "+
		"not in one of %d frames of %d bytes", loan.len, loan.addr, a.frames, a.frameSize)}
}
