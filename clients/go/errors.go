//go:build linux

package lend

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
)

// What can go wrong, for errors.Is. An error's text has the lender's path, or what exactly was
// wrong, in addition.
var (
	// ErrInvalid is an option or a path that cannot be used.
	ErrInvalid = errors.New("an option that cannot be used")
	// ErrNoLender means that nobody listens at the path.
	ErrNoLender = errors.New("there is no lender")
	// ErrProtocol means that what the other side said or wrote makes no sense.
	ErrProtocol = errors.New("that is no lender, or one that is out of step")
	// ErrDied means that the lender is gone, and did not say that it ends.
	ErrDied = errors.New("the lender is gone and said nothing: it was killed, or it crashed")
	// ErrDisconnected means that the lender has disconnected the borrower, for what it takes for
	// offences.
	ErrDisconnected = errors.New("the lender has disconnected us, for what we did")
	// ErrEvicted means that the lender has disconnected the borrower, which had its quota and
	// returned nothing for longer than borrowers may.
	ErrEvicted = errors.New("the lender has disconnected us: we had our quota, and returned " +
		"nothing for too long (lend --evict-after)")
	// ErrWaiting means that another goroutine waits with the same borrower.
	ErrWaiting = errors.New("another goroutine waits for the lender with this borrower")
)

var (
	errClosed = &fault{text: "the borrower is closed", kind: net.ErrClosed}
	errShort  = &fault{text: "a packet has more parts than places", kind: io.ErrShortBuffer}
)

// A Status is how a handshake went. A lender can send one that is not listed here: that is a
// refusal too.
type Status uint16

const (
	// StatusWelcome means that it is a borrower now.
	StatusWelcome Status = iota
	// StatusVersion means that there is no version in common.
	StatusVersion
	// StatusInvalid means that the hello is not one.
	StatusInvalid
	// StatusFull means that there are as many borrowers as there can be.
	StatusFull
	// StatusQuota means that there are not frames enough for such a quota.
	StatusQuota
	// StatusBusy means that there are too many handshakes at the moment, or that a borrower that
	// left still has what was asked for.
	StatusBusy
	// StatusMirror means that there are no mirrors, and no groups but 0, while the lender keeps a
	// ledger for each borrower.
	StatusMirror
	// StatusClosing means that the lender is about to end.
	StatusClosing
	// StatusDenied means that the borrower's user may not have what was asked for.
	StatusDenied
)

// A RefusedError says that the lender has refused the borrower, and why.
type RefusedError struct {
	// Status is the reason, for programs. It is not StatusWelcome.
	Status Status
	// Reason is the reason, for people, without control characters. It can be empty.
	Reason string
	path   string
}

func (e *RefusedError) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("%s: the lender refuses, status %d", e.path, e.Status)
	}
	return fmt.Sprintf("%s: the lender refuses: %s", e.path, e.Reason)
}

// MayPass says whether a borrower that has come to this error may succeed with the same options
// later: when the lender starts again, or has room. See Options.Patience.
func MayPass(err error) bool {
	var refused *RefusedError
	if errors.As(err, &refused) {
		switch refused.Status {
		case StatusFull, StatusQuota, StatusBusy, StatusClosing:
			return true
		}
		return false
	}
	for _, passing := range []error{ErrNoLender, ErrDied, ErrEvicted, os.ErrDeadlineExceeded} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return false
}

// A fault is an error of one of the kinds above, with the whole text; or one that comes from an
// error of the system, whose text follows; or both.
type fault struct {
	text  string
	kind  error
	cause error
}

func (e *fault) Error() string {
	if e.kind != nil {
		return e.text
	}
	return e.text + ": " + e.cause.Error()
}

func (e *fault) Is(target error) bool { return target == e.kind }

func (e *fault) Unwrap() error { return e.cause }
