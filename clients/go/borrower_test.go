//go:build linux

package lend

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"
)

// receive receives what is there, and fails the test where that is an error.
func receive(t *testing.T, b *Borrower, max int) []Loan {
	t.Helper()
	loans := make([]Loan, max)
	n, err := b.Receive(loans)
	must(t, err)
	return loans[:n]
}

func tokens(loans []Loan) (tokens []uint32) {
	for _, loan := range loans {
		tokens = append(tokens, loan.token)
	}
	return tokens
}

func equal(t *testing.T, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

// fails says whether it is this error, and has this in its text.
func fails(t *testing.T, err, kind error, part string) {
	t.Helper()
	if !errors.Is(err, kind) || !strings.Contains(err.Error(), part) {
		t.Fatalf("got %v, want %v with %q", err, kind, part)
	}
}

func panics(t *testing.T, part string, act func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if said := fmt.Sprint(recover()); !strings.Contains(said, part) {
			t.Fatalf("got %s, want a panic with %q", said, part)
		}
	}()
	act()
}

// sequence is count numbers from first on.
func sequence(first, count uint32) (numbers []uint32) {
	for at := uint32(0); at < count; at++ {
		numbers = append(numbers, first+at)
	}
	return numbers
}

func reversed(loans []Loan) (reversed []Loan) {
	for at := range loans {
		reversed = append(reversed, loans[len(loans)-1-at])
	}
	return reversed
}

func TestHelloAndWelcomeAreReadAsTheyAreMeant(t *testing.T) {
	l, b := connected(t, Options{Name: "test", Quota: 9, Mirror: true})
	hello := l.hello
	equal(t, [2]uint32{hello.magic, hello.quota}, [2]uint32{magic, 9})
	equal(t, strings.TrimRight(string(hello.name[:]), "\x00"), "test")
	equal(t, [2]uint16{hello.versionMin, hello.versionMax}, [2]uint16{2, 3})
	equal(t, hello.flags, uint32(helloMirror))
	equal(t, [2]int{b.Frames(), b.FrameSize()}, [2]int{testFrames, testFrame})
	equal(t, [2]int{b.Quota(), b.Channels()}, [2]int{testQuota, testChannels})
	equal(t, b.IsMirror(), true)
	equal(t, b.Group(), uint16(0))
}

func TestOneThatWantsAGroupSpeaksNoVersionWithoutThem(t *testing.T) {
	l, b := connected(t, Options{Group: 40_000})
	equal(t, [2]uint16{l.hello.versionMin, l.hello.versionMax}, [2]uint16{3, 3})
	equal(t, l.hello.flags, uint32(40_000<<16))
	equal(t, b.IsMirror(), false)
	equal(t, b.Group(), uint16(40_000))
	// The process's name.
	if l.hello.name[0] == 0 {
		t.Fatal("it has no name")
	}
}

func TestLoansArriveAsTheyAreAndTokensGoBackInTheirChannel(t *testing.T) {
	l, b := connected(t, Options{})
	for at := uint32(0); at < 20; at++ {
		first := at * 7
		l.lend(0, first, 1, 2)
		l.lend(1, first+3, 1, 3)
		loans := receive(t, b, 64)
		equal(t, len(loans), 7)
		equal(t, b.Out(), 7)
		for _, loan := range loans {
			frame := b.Bytes(loan)
			equal(t, [2]int{len(frame), cap(frame)}, [2]int{loan.Len(), loan.Len()})
			equal(t, loan.Len(), int(100+loan.token))
			equal(t, binary.LittleEndian.Uint32(frame), loan.token)
			equal(t, loan.Time(), time.Unix(0, 7))
			equal(t, loan.FlowHash(), uint32(5))
			equal(t, loan.Shared(), !loan.More())
		}
		b.GiveBack(reversed(loans)...)
		equal(t, b.Out(), 0)
		// Which channel was first changes; what is in a channel keeps its order.
		equal(t, l.returned(0), []uint32{first + 2, first + 1, first})
		equal(t, l.returned(1), []uint32{first + 6, first + 5, first + 4, first + 3})
	}
}

func TestIndicesWrap(t *testing.T) {
	l, b := connected(t, Options{})
	const start = 1<<32 - 40
	for number := range b.channels {
		b.channels[number].nextLoan, b.channels[number].nextToken = start, start
		l.next[number], l.taken[number] = start, start
		l.publish(number)
	}
	for at := uint32(0); at < 30; at++ {
		l.lend(0, at, 1, 2)
		loans := receive(t, b, 64)
		equal(t, tokens(loans), sequence(at, 3))
		b.GiveBack(loans...)
		equal(t, l.returned(0), sequence(at, 3))
	}
}

func TestLoansThatAreGivenBackWrongly(t *testing.T) {
	l, b := connected(t, Options{})
	_, other := connected(t, Options{})
	l.lend(0, 5, 1, 1)
	loans := receive(t, b, 64)
	b.GiveBack(loans[1])
	equal(t, l.returned(0), []uint32{6})
	panics(t, "a loan of another borrower", func() { other.GiveBack(loans[0]) })
	panics(t, "a loan of another borrower", func() { other.Bytes(loans[0]) })
	panics(t, "a loan of another borrower", func() { b.GiveBack(Loan{}) })
	panics(t, "a loan of another borrower", func() { b.Bytes(Loan{}) })
	panics(t, "more loans are given back than are out", func() { b.GiveBack(loans...) })
	// It goes on.
	l.lend(0, 7, 1)
	b.GiveBack(receive(t, b, 64)...)
	equal(t, b.Out(), 0)
}

func TestBytesAreNoCopyAndCannotBeWritten(t *testing.T) {
	l, b := connected(t, Options{})
	l.lend(0, 5, 1)
	frame := b.Bytes(receive(t, b, 1)[0])
	l.area[5*testFrame+64+9] = 77
	equal(t, frame[9], byte(77))
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	panics(t, "invalid memory address", func() { frame[0] = 1 })
}

func TestPacketsAreNeverCutAndNoChannelWaitsForAnother(t *testing.T) {
	l, b := connected(t, Options{})
	l.put(0, slot{len: 1, token: 0, flags: loanMore})
	l.publish(0)
	equal(t, len(receive(t, b, 64)), 0)
	equal(t, len(receive(t, b, 1)), 0)
	equal(t, b.Out(), 0)
	l.put(0, slot{len: 1, token: 1})
	l.publish(0)
	_, err := b.Receive(make([]Loan, 1))
	fails(t, err, io.ErrShortBuffer, "more parts than places")
	equal(t, len(receive(t, b, 0)), 0)
	// One that fits, in the other channel, comes before that.
	l.lend(1, 2, 1)
	equal(t, tokens(receive(t, b, 1)), []uint32{2})
	loans := receive(t, b, 2)
	equal(t, tokens(loans), []uint32{0, 1})
	b.GiveBack(loans...)
	l.lend(0, 100, 5, 5)
	l.lend(1, 200, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)
	var long, short []uint32
	for at := 0; at < 4; at++ {
		loans := receive(t, b, 6)
		if len(loans) == 0 || loans[len(loans)-1].More() {
			t.Fatalf("%v is cut", loans)
		}
		for _, token := range tokens(loans) {
			if token < 200 {
				long = append(long, token)
			} else {
				short = append(short, token)
			}
		}
		b.GiveBack(loans...)
	}
	equal(t, long, sequence(100, 10))
	equal(t, short, sequence(200, uint32(len(short))))
}

func TestEachChannelHasAShare(t *testing.T) {
	l, b := connected(t, Options{})
	many := []int{1, 1, 1, 1, 1, 1, 1, 1}
	l.lend(0, 0, many...)
	l.lend(1, 100, many...)
	equal(t, tokens(receive(t, b, 4)), []uint32{0, 1, 100, 101})
	equal(t, tokens(receive(t, b, 4)), []uint32{102, 103, 2, 3})
	l.lend(0, 8, many...)
	b.GiveBack(receive(t, b, 2)...)
	// What one does not need, the other gets.
	loans := receive(t, b, 64)
	equal(t, len(loans), 14)
	equal(t, len(receive(t, b, 64)), 0)
}

func TestAnIndexThatDoesNotChangeIsNotWritten(t *testing.T) {
	l, b := connected(t, Options{})
	l.lend(0, 0, 1)
	l.lend(1, 1, 1)
	loans := receive(t, b, 2)
	b.GiveBack(loans[0])
	equal(t, [2]uint32{l.backs[0].producer, l.backs[1].producer}, [2]uint32{1, 0})
	l.backs[0].producer = 77
	b.GiveBack(loans[1])
	b.GiveBack()
	equal(t, [2]uint32{l.backs[0].producer, l.backs[1].producer}, [2]uint32{77, 1})
}

func TestWhatTheLenderDroppedIsCounted(t *testing.T) {
	l, b := connected(t, Options{})
	for number := range l.outs {
		l.outs[number].dropped = 1<<32 + 3
	}
	equal(t, b.Dropped(), uint64(1<<33+6))
	b.Close()
	equal(t, b.Dropped(), uint64(1<<33+6))
}

func TestLoansOutsideTheAreaOrOfTwoFramesAreRefused(t *testing.T) {
	l, b := connected(t, Options{})
	const end = testFrames * testFrame
	for _, bad := range []slot{
		{addr: end, len: 1},
		{addr: end - 1, len: 2},
		{addr: 0, len: 0},
		{addr: 0, len: testFrame + 1},
		{addr: 2000, len: 49},
		{addr: 0, len: 1<<32 - 1},
		{addr: 1<<64 - 1, len: 1},
		{addr: 1 << 63, len: testFrame},
	} {
		l.next[0] = 0
		l.put(0, bad)
		l.publish(0)
		for at := 0; at < 2; at++ {
			_, err := b.Receive(make([]Loan, 64))
			fails(t, err, ErrProtocol, fmt.Sprintf("%d bytes at %d,", bad.len, bad.addr))
		}
		equal(t, b.Out(), 0)
	}
	// What is good, in another channel, is received.
	l.lend(1, 9, 1)
	loans := make([]Loan, 64)
	found := 0
	for at := 0; at < 2; at++ {
		n, err := b.Receive(loans)
		fails(t, err, ErrProtocol, "not in one of 16 frames of 2048 bytes")
		found += n
	}
	equal(t, found, 1)
	equal(t, loans[0].token, uint32(9))
}

func TestAnIndexOutOfStepIsAnError(t *testing.T) {
	l, b := connected(t, Options{})
	l.next[1] = testSlots + 1
	l.publish(1)
	_, err := b.Receive(make([]Loan, 64))
	fails(t, err, ErrProtocol, "from 0 to 33")
	for _, timeout := range []time.Duration{0, time.Second, -1} {
		_, err = b.Wait(timeout)
		fails(t, err, ErrProtocol, "from 0 to 33")
	}
}

func TestOtherGoroutinesCanReadAndGiveBack(t *testing.T) {
	l, b := connected(t, Options{})
	work := make(chan Loan, testQuota)
	var workers sync.WaitGroup
	for at := 0; at < 4; at++ {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for loan := range work {
				if binary.LittleEndian.Uint32(b.Bytes(loan)) != loan.token {
					t.Error("other bytes")
				}
				b.GiveBack(loan)
			}
		}()
	}
	const rounds = 400
	lent := make(chan struct{})
	go func() {
		defer close(lent)
		for at := uint32(0); at < rounds; at += 8 {
			// Each frame once.
			l.lend(0, at%1000, 1, 1, 1)
			l.lend(1, at%1000+3, 1, 1, 1, 1, 1)
			for back := 0; back < 8; time.Sleep(time.Microsecond) {
				back += len(l.returned(0)) + len(l.returned(1))
			}
		}
	}()
	received := 0
	for received < rounds {
		there, err := b.Wait(20 * time.Second)
		if err != nil || there != Ready {
			t.Fatal(there, err)
		}
		for _, loan := range receive(t, b, 8) {
			work <- loan
			received++
		}
	}
	close(work)
	workers.Wait()
	<-lent
	equal(t, b.Out(), 0)
}

func TestNothingIsAllocated(t *testing.T) {
	l, b := connected(t, Options{})
	loans := make([]Loan, 64)
	total := 0
	cycle := func() {
		l.lend(0, 0, 1, 2)
		l.lend(1, 3, 1)
		if there, err := b.Wait(-1); err != nil || there != Ready {
			t.Fatal(there, err)
		}
		n, err := b.Receive(loans)
		if err != nil || n != 4 {
			t.Fatal(n, err)
		}
		for _, loan := range loans[:n] {
			total += len(b.Bytes(loan)) + loan.Time().Nanosecond()
		}
		b.GiveBack(loans[:n-1]...)
		b.GiveBack(loans[n-1])
		if there, err := b.Wait(0); err != nil || there != TimedOut {
			t.Fatal(there, err)
		}
		total += int(b.Dropped()) + b.Out()
	}
	equal(t, testing.AllocsPerRun(1000, cycle), 0.0)

	// The same, asleep.
	turn, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stop)
		for range turn {
			l.untilAsleep()
			l.lend(0, 0, 1)
		}
	}()
	asleep := func() {
		turn <- struct{}{}
		if there, err := b.Wait(time.Minute); err != nil || there != Ready {
			t.Error(there, err)
		}
		n, _ := b.Receive(loans)
		b.GiveBack(loans[:n]...)
	}
	equal(t, testing.AllocsPerRun(200, asleep), 0.0)
	close(turn)
	<-stop
}
