//go:build linux

package lend

import (
	"net"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func waits(t *testing.T, b *Borrower, timeout time.Duration, want Wait) {
	t.Helper()
	there, err := b.Wait(timeout)
	must(t, err)
	equal(t, there, want)
}

// A slept is how a Wait in another goroutine ended.
type slept struct {
	there Wait
	err   error
}

func inBackground(b *Borrower, timeout time.Duration) chan slept {
	result := make(chan slept, 1)
	go func() {
		there, err := b.Wait(timeout)
		result <- slept{there, err}
	}()
	return result
}

func soon(t *testing.T, result chan slept) slept {
	t.Helper()
	select {
	case slept := <-result:
		return slept
	case <-time.After(20 * time.Second):
		t.Fatal("it sleeps on")
		panic("not reached")
	}
}

func TestASleeperIsWokenAndOneThatIsAwakeCostsTheLenderNothing(t *testing.T) {
	l, b := connected(t, Options{})
	waits(t, b, 0, TimedOut)
	equal(t, atomic.LoadUint32(l.asleep), uint32(0))
	waits(t, b, time.Millisecond, TimedOut)
	l.lend(1, 0, 1)
	if l.publish(1) {
		t.Fatal("nobody sleeps")
	}
	for at := 0; at < 50; at++ {
		waits(t, b, -1, Ready)
		b.GiveBack(receive(t, b, 64)...)
		result := inBackground(b, [2]time.Duration{-1, time.Minute}[at%2])
		l.untilAsleep()
		l.lend(at%2, 0, 1)
		equal(t, soon(t, result), slept{Ready, nil})
		if atomic.LoadUint32(l.asleep)%2 != 0 {
			t.Fatal("it is awake, and says that it sleeps")
		}
	}
}

func TestWhatIsPublishedWhileItFallsAsleepIsNotSleptOn(t *testing.T) {
	l, b := connected(t, Options{})
	var isOver atomic.Bool
	lent := make(chan struct{})
	go func() {
		defer close(lent)
		// A little after it has come back, which is about when the borrower falls asleep.
		for l.lend(0, 0, 1); !isOver.Load(); runtime.Gosched() {
			if len(l.returned(0)) > 0 {
				for delay := l.next[0] % 512; delay > 0; delay-- {
					atomic.LoadUint32(l.asleep)
				}
				l.lend(0, 0, 1)
			}
		}
	}()
	defer func() {
		isOver.Store(true)
		<-lent
	}()
	start := time.Now()
	for time.Since(start) < 500*time.Millisecond {
		waits(t, b, 20*time.Second, Ready)
		b.GiveBack(receive(t, b, 1)...)
	}
	// A wait whose time is over looks once more.
	if took := time.Since(start); took > 20*time.Second {
		t.Fatalf("it slept on a loan, %v in all", took)
	}
}

func TestATimeIsNotCutShortByAWakeUpForNothing(t *testing.T) {
	l, b := connected(t, Options{})
	for at := 0; at < 3; at++ {
		l.ring()
	}
	start := time.Now()
	waits(t, b, 50*time.Millisecond, TimedOut)
	if took := time.Since(start); took < 50*time.Millisecond {
		t.Fatalf("it took %v", took)
	}
	// Each wake-up was received, or the lender would send no more.
	equal(t, pending(t, b), false)
	l.ring()
	waits(t, b, 0, TimedOut)
	equal(t, pending(t, b), false)
	result := inBackground(b, -1)
	l.untilAsleep()
	l.ring()
	time.Sleep(time.Millisecond)
	l.untilAsleep()
	l.lend(0, 0, 1)
	equal(t, soon(t, result), slept{Ready, nil})
}

func TestTheTimeToConnectInIsNoneToWaitIn(t *testing.T) {
	const timeout = 200 * time.Millisecond
	l, b := connected(t, Options{Timeout: timeout})
	result := inBackground(b, -1)
	time.Sleep(timeout + timeout/4)
	l.untilAsleep()
	l.lend(0, 0, 1)
	equal(t, soon(t, result), slept{Ready, nil})
}

// pending says whether the socket has a message.
func pending(t *testing.T, b *Borrower) (is bool) {
	t.Helper()
	must(t, b.bell.raw.Control(func(fd uintptr) {
		_, _, err := syscall.Recvfrom(int(fd), make([]byte, 16), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		is = err == nil
	}))
	return is
}

func TestOnlyOneGoroutineWaits(t *testing.T) {
	l, b := connected(t, Options{})
	result := inBackground(b, -1)
	l.untilAsleep()
	_, err := b.Wait(time.Second)
	fails(t, err, ErrWaiting, "another goroutine")
	// Others are not held up.
	equal(t, len(receive(t, b, 4)), 0)
	equal(t, b.Out(), 0)
	l.lend(0, 0, 1)
	equal(t, soon(t, result), slept{Ready, nil})
	waits(t, b, time.Second, Ready)
}

func TestTheEndComesAfterEverythingWasReceived(t *testing.T) {
	l, b := connected(t, Options{})
	l.lend(0, 0, 1)
	l.sayWhy(endingLender)
	l.sayClosed(0)
	waits(t, b, -1, Ready)
	equal(t, len(receive(t, b, 64)), 1)
	waits(t, b, time.Millisecond, TimedOut)
	l.sayClosed(1)
	waits(t, b, -1, Closed)
	waits(t, b, 0, Closed)
}

func TestALenderThatEndsWakesASleeper(t *testing.T) {
	for _, version := range []uint16{2, 3} {
		version := version
		l := newLender(t, func(l *lender) { l.welcome.version = version })
		b, err := Connect(l.path, Options{})
		must(t, err)
		defer b.Close()
		<-l.done
		result := inBackground(b, -1)
		l.untilAsleep()
		if version > 2 {
			l.sayWhy(endingLender)
		}
		// One is enough, once the socket has ended.
		l.sayClosed(1)
		l.conn.Close()
		equal(t, soon(t, result), slept{Closed, nil})
	}
}

func TestALenderThatDiesIsTheEndToo(t *testing.T) {
	l, b := connected(t, Options{})
	l.lend(0, 0, 1)
	l.conn.Close()
	waits(t, b, -1, Ready)
	receive(t, b, 64)
	for _, timeout := range []time.Duration{0, -1, time.Minute} {
		_, err := b.Wait(timeout)
		fails(t, err, ErrDied, "killed, or it crashed")
	}

	l, b = connected(t, Options{})
	result := inBackground(b, -1)
	l.untilAsleep()
	l.conn.Close()
	fails(t, soon(t, result).err, ErrDied, "")
}

func TestOneThatIsDisconnectedLearnsWhy(t *testing.T) {
	l, b := connected(t, Options{})
	for why, want := range map[uint32]error{endingOffence: ErrDisconnected, endingEvicted: ErrEvicted} {
		l.sayWhy(why)
		l.sayClosed(0)
		l.sayClosed(1)
		_, err := b.Wait(-1)
		fails(t, err, want, "the lender has disconnected us")
	}
	for _, why := range []uint32{endingLender, 99} {
		l.sayWhy(why)
		waits(t, b, -1, Closed)
	}
}

func TestCloseWakesASleeper(t *testing.T) {
	for at := 0; at < 50; at++ {
		l, b := connected(t, Options{})
		result := inBackground(b, [2]time.Duration{-1, time.Minute}[at%2])
		if at > 25 {
			l.untilAsleep()
		}
		must(t, b.Close())
		must(t, b.Close())
		fails(t, soon(t, result).err, net.ErrClosed, "the borrower is closed")
		_, err := b.Wait(0)
		fails(t, err, net.ErrClosed, "the borrower is closed")
		_, err = b.Receive(make([]Loan, 1))
		fails(t, err, net.ErrClosed, "the borrower is closed")
		equal(t, [3]int{b.Out(), b.Channels(), int(b.Dropped())}, [3]int{0, testChannels, 0})
	}
}

func TestCloseWhileOthersUseTheBorrower(t *testing.T) {
	for at := 0; at < 50; at++ {
		l, b := connected(t, Options{})
		stop, lent := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(lent)
			for token := uint32(0); ; {
				select {
				case <-stop:
					return
				default:
				}
				if len(l.returned(0)) > 0 || token == 0 {
					l.put(0, slot{len: 100, token: token})
					token++
					atomic.StoreUint32(&l.outs[0].producer, l.next[0])
				}
				runtime.Gosched()
			}
		}()
		result := make(chan error, 1)
		go func() {
			loans := make([]Loan, 4)
			sum := 0
			for {
				n, err := b.Receive(loans)
				for _, loan := range loans[:n] {
					for _, each := range b.Bytes(loan) {
						sum += int(each)
					}
				}
				b.GiveBack(loans[:n]...)
				if n == 0 && err == nil {
					_, err = b.Wait(time.Millisecond)
				}
				b.Dropped()
				if err != nil {
					result <- err
					return
				}
			}
		}()
		time.Sleep(time.Duration(at) * 20 * time.Microsecond)
		b.Close()
		fails(t, <-result, net.ErrClosed, "")
		close(stop)
		<-lent
		equal(t, b.Out(), 0)
		equal(t, b.isUnmapped.Load(), true)
	}
}

func TestBytesStayUntilTheirLoanIsGivenBackAndThenAreUnmapped(t *testing.T) {
	l, b := connected(t, Options{})
	l.lend(0, 3, 1, 1)
	loans := receive(t, b, 2)
	frame := b.Bytes(loans[0])
	with := belongings(t)
	must(t, b.Close())
	after := belongings(t)
	// Its socket, and the memories out and back.
	equal(t, [2]int{with[0] - after[0], with[1] - after[1]}, [2]int{1, 2})
	equal(t, [2]byte{frame[0], b.Bytes(loans[1])[0]}, [2]byte{3, 4})
	b.GiveBack(loans[0])
	equal(t, b.Bytes(loans[1])[0], byte(4))
	equal(t, b.Out(), 1)
	b.GiveBack(loans[1])
	equal(t, belongings(t)[1], after[1]-1)
	panics(t, "bytes of a loan that was given back", func() { b.Bytes(loans[1]) })
	panics(t, "more loans are given back than are out", func() { b.GiveBack(loans[1]) })
}

func TestTheAreaOfAClosedBorrowerThatNobodyHasIsUnmapped(t *testing.T) {
	l := newLender(t, nil)
	before := belongings(t)[1]
	func() {
		b, err := Connect(l.path, Options{})
		must(t, err)
		<-l.done
		l.lend(0, 3, 1)
		equal(t, len(receive(t, b, 1)), 1)
		must(t, b.Close())
		equal(t, belongings(t)[1], before+1)
	}()
	for until := time.Now().Add(20 * time.Second); belongings(t)[1] != before; {
		if time.Now().After(until) {
			t.Fatal("it is still mapped")
		}
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
}
