//go:build linux

package lend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
	"unicode"
)

// check says whether the answer is a welcome, and all numbers in it go together.
func (p *peer) check(said *welcome) error {
	if said.magic != magic {
		return p.odd("an answer that does not start as a lender's")
	}
	if status := Status(said.status); status != StatusWelcome {
		reason, _, _ := bytes.Cut(said.reason[:], []byte{0})
		return &RefusedError{Status: status, Reason: strings.Map(printable, string(reason)), path: p.path}
	}
	if said.version < versionMin || said.version > versionMax {
		return p.odd("version %d", said.version)
	}
	if !isPowerOfTwo(said.frameSize) || said.frames == 0 {
		return p.odd("%d frames of %d bytes", said.frames, said.frameSize)
	}
	areSlots := isPowerOfTwo(said.slots) && said.slots >= slotsMin && said.slots <= slotsMax
	areChannels := said.channels > 0 && said.channels <= channelsMax
	if !areSlots || !areChannels || said.quota == 0 || said.quota > said.slots {
		return p.odd("%d channels of %d slots for %d loans", said.channels, said.slots, said.quota)
	}
	for _, memory := range [3]struct{ said, needed uint64 }{
		{said.areaLen, uint64(said.frames) * uint64(said.frameSize)},
		{said.outLen, outChannel(said.slots, said.channels)},
		{said.backLen, backChannel(said.slots, said.channels)},
	} {
		const most = uint64(^uint(0) >> 1)
		if memory.said < memory.needed || memory.said > most {
			return p.odd("%d bytes of memory where %d are needed", memory.said, memory.needed)
		}
	}
	return nil
}

func isPowerOfTwo(number uint32) bool { return number != 0 && number&(number-1) == 0 }

// printable is the character, or ? in the place of one that changes how others are shown: what the
// lender says goes to a terminal.
func printable(char rune) rune {
	switch {
	case unicode.IsControl(char), unicode.Is(unicode.Bidi_Control, char), char == 0x2028, char == 0x2029:
		return '?'
	default:
		return char
	}
}

// descriptorsIn gives the descriptors that came with a message.
func descriptorsIn(control []byte) (descriptors []int) {
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	for at := range messages {
		// It fails for messages of another kind.
		if found, err := syscall.ParseUnixRights(&messages[at]); err == nil {
			descriptors = append(descriptors, found...)
		}
	}
	return descriptors
}

func closeAll(descriptors []int) {
	for _, each := range descriptors {
		syscall.Close(each)
	}
}

// interruptible ends what waits at the connection once the context is done. Call what it gives
// before the connection gets another deadline.
func interruptible(ctx context.Context, conn *net.UnixConn) (stop func()) {
	if ctx.Done() == nil {
		return func() {}
	}
	over, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-ctx.Done():
			// A time in the past. It fails for a connection that is closed.
			_ = conn.SetDeadline(time.Unix(1, 0))
		case <-over:
		}
	}()
	return func() {
		close(over)
		<-stopped
	}
}

// sleep says whether the time passed before the context was done.
func sleep(ctx context.Context, length time.Duration) bool {
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// isEnd says whether the connection has ended.
func isEnd(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)
}

// isHungUp says whether nobody is there to send to.
func isHungUp(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

func (p *peer) hungUp() error {
	return &fault{kind: ErrDied, text: p.path + ": the lender closed the connection and did not say why"}
}

func (p *peer) timedOut(what string) error {
	text := fmt.Sprintf("%s: the lender %s within %v", p.path, what, p.timeout)
	return &fault{kind: os.ErrDeadlineExceeded, text: text}
}

func (p *peer) odd(format string, values ...any) error {
	what := fmt.Sprintf(format, values...)
	return &fault{kind: ErrProtocol, text: fmt.Sprintf("%s: %v: it sent %s", p.path, ErrProtocol, what)}
}

func (p *peer) failed(what string, cause error) *fault {
	return &fault{text: p.path + ": " + what, cause: cause}
}
