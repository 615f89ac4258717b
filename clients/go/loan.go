//go:build linux

package lend

import "time"

// A Loan is a packet on loan, or a part of one. It belongs to the Borrower that received it, and
// goes back to that one, once. Copies are the same loan.
type Loan struct {
	addr     uint64
	time     uint64
	len      uint32
	token    uint32
	hash     uint32
	borrower uint32
	channel  uint16
	flags    uint16
}

// Len is how many bytes it has: from 1 to Borrower.FrameSize.
func (l Loan) Len() int { return int(l.len) }

// FlowHash is the same for all packets of a flow, in both directions. By this number the lender
// shares packets out among its borrowers. Another run of the lender has other numbers.
func (l Loan) FlowHash() uint32 { return l.hash }

// Time is when the packet came, if it is Stamped; else when the lender took its batch from its queue.
func (l Loan) Time() time.Time { return time.Unix(0, int64(l.time)) }

// Stamped says whether its time is that of its packet alone (cachelane lend --timestamps software).
func (l Loan) Stamped() bool { return l.flags&loanStamped != 0 }

// More says whether the packet goes on in the next loan.
func (l Loan) More() bool { return l.flags&loanMore != 0 }

// Shared says whether other borrowers have it too.
func (l Loan) Shared() bool { return l.flags&loanShared != 0 }
