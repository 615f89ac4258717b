//go:build linux

package lend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// refused is the error of a borrower whose lender was changed like that. Nothing is left of it.
func refused(t *testing.T, change func(*lender)) error {
	t.Helper()
	l := newLender(t, change)
	// The first one initializes what the process has once.
	before := belongings(t)
	b, err := Connect(l.path, Options{})
	if err == nil {
		b.Close()
		t.Fatal("not refused")
	}
	<-l.done
	after := belongings(t)
	if l.conn != nil {
		after[0]-- // The lender's.
	}
	equal(t, after, before)
	if !strings.HasPrefix(err.Error(), l.path+": ") {
		t.Fatalf("%q does not name the lender", err)
	}
	return err
}

func TestARefusalGivesTheLendersReason(t *testing.T) {
	for _, example := range []struct {
		reason, text string
		status       Status
		mayPass      bool
	}{
		{"too\x1b many\n", ": the lender refuses: too? many?", StatusQuota, true},
		{"\u202eolleh\u2028\u061c\xff", ": the lender refuses: ?olleh??\ufffd", StatusMirror, false},
		{strings.Repeat("x", 96), "xxx", StatusVersion, false},
		{"", ": the lender refuses, status 77", 77, false},
	} {
		example := example
		err := refused(t, func(l *lender) {
			l.welcome.version, l.welcome.status = 0, uint16(example.status)
			copy(l.welcome.reason[:], example.reason)
			l.fds, l.stopsAfterAnswer = l.closed(3), true
		})
		var refusal *RefusedError
		if !errors.As(err, &refusal) || refusal.Status != example.status {
			t.Fatalf("%v", err)
		}
		if !strings.HasSuffix(err.Error(), example.text) {
			t.Fatalf("%q does not end with %q", err, example.text)
		}
		equal(t, MayPass(err), example.mayPass)
	}
}

// closed is the descriptors without some, which it closes.
func (l *lender) closed(count int) []int {
	rest := len(l.fds) - count
	closeAll(l.fds[rest:])
	return l.fds[:rest]
}

func TestWhatIsNoWelcomeIsNotBelieved(t *testing.T) {
	for _, example := range []struct {
		change func(*welcome)
		part   string
	}{
		{func(w *welcome) { w.magic++ }, "does not start as a lender's"},
		{func(w *welcome) { w.version = 0 }, "version 0"},
		{func(w *welcome) { w.version = 1 }, "version 1"},
		{func(w *welcome) { w.version = 4 }, "version 4"},
		{func(w *welcome) { w.frameSize = 1000 }, "frames of 1000 bytes"},
		{func(w *welcome) { w.frameSize = 0 }, "frames of 0 bytes"},
		{func(w *welcome) { w.frames = 0 }, "0 frames"},
		{func(w *welcome) { w.slots = 0 }, "0 slots"},
		{func(w *welcome) { w.slots = 16 }, "16 slots"},
		{func(w *welcome) { w.slots = 48 }, "48 slots"},
		{func(w *welcome) { w.slots = 1 << 31 }, "2147483648 slots"},
		{func(w *welcome) { w.channels = 0 }, "0 channels"},
		{func(w *welcome) { w.channels = 1 << 31 }, "2147483648 channels"},
		{func(w *welcome) { w.quota = 0 }, "0 loans"},
		{func(w *welcome) { w.quota = 33 }, "33 loans"},
		{func(w *welcome) { w.areaLen-- }, "32767 bytes of memory where 32768"},
		{func(w *welcome) { w.outLen = 1 }, "1 bytes of memory where"},
		{func(w *welcome) { w.backLen-- }, "bytes of memory where"},
		{func(w *welcome) { w.areaLen = 1<<64 - 1 }, "18446744073709551615 bytes of memory"},
		{func(w *welcome) { w.areaLen++ }, "'area' with fewer than 32769 bytes"},
		{func(w *welcome) { w.outLen++ }, "'out' with fewer than"},
		{func(w *welcome) { w.backLen++ }, "'back' with fewer than"},
	} {
		example := example
		err := refused(t, func(l *lender) { example.change(&l.welcome) })
		fails(t, err, ErrProtocol, "out of step: it sent ")
		fails(t, err, ErrProtocol, example.part)
		equal(t, MayPass(err), false)
	}
}

func TestDescriptorsThatAreMissingOrNotSealedAreNotUsed(t *testing.T) {
	for count := 1; count <= 3; count++ {
		count := count
		err := refused(t, func(l *lender) { l.fds = l.closed(count) })
		fails(t, err, ErrProtocol, fmt.Sprintf("it sent %d descriptors", 3-count))
	}
	for at, name := range []string{"area", "out", "back"} {
		at := at
		err := refused(t, func(l *lender) {
			syscall.Close(l.fds[at])
			l.fds[at] = memory(t, 1<<20, false)
		})
		fails(t, err, ErrProtocol, "the memory '"+name+"', which is not sealed")
		err = refused(t, func(l *lender) {
			syscall.Close(l.fds[at])
			var err error
			l.fds[at], err = syscall.Open("/dev/null", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
			must(t, err)
		})
		fails(t, err, ErrProtocol, "the memory '"+name+"', which is not sealed")
	}
	for _, count := range []int{4, 5, 100} {
		count := count
		err := refused(t, func(l *lender) {
			for len(l.fds) < count {
				l.fds = append(l.fds, memory(t, 1<<20, true))
			}
		})
		fails(t, err, ErrProtocol, "out of step: it sent ")
	}
}

func TestAnswersOfAnotherSizeAreNotBelieved(t *testing.T) {
	for _, size := range []int{1, 159, 161, 1000} {
		size := size
		err := refused(t, func(l *lender) {
			l.answerFor = func(*lender) {
				l.hear()
				l.say(append(bytesOf(&l.welcome)[:], make([]byte, 1000)...)[:size], l.fds)
			}
		})
		fails(t, err, ErrProtocol, "an answer of another size")
	}
}

func TestALenderThatClosesIsOneThatDied(t *testing.T) {
	for name, answer := range map[string]func(*lender){
		"before the hello":  func(*lender) {},
		"after the hello":   (*lender).hear,
		"after the welcome": func(l *lender) { l.hear(); l.say(bytesOf(&l.welcome)[:], l.fds) },
	} {
		answer := answer
		t.Run(name, func(t *testing.T) {
			err := refused(t, func(l *lender) {
				l.answerFor = func(l *lender) {
					answer(l)
					l.hangUp()
				}
			})
			fails(t, err, ErrDied, "the lender closed the connection and did not say why")
			equal(t, MayPass(err), true)
		})
	}
}

func TestARefusalIsReadWhereTheHelloWasNot(t *testing.T) {
	for _, hasCome := range []bool{false, true} {
		hasCome := hasCome
		err := refused(t, func(l *lender) {
			l.welcome.status = uint16(StatusBusy)
			l.answerFor = func(l *lender) {
				if hasCome {
					l.untilSaid()
				}
				l.say(bytesOf(&l.welcome)[:], nil)
				// With a hello that was not read, this resets the connection.
				l.hangUp()
			}
		})
		var refusal *RefusedError
		if !errors.As(err, &refusal) || refusal.Status != StatusBusy {
			t.Fatal(err)
		}
	}
}

func TestDescriptorsAreClosedOnExec(t *testing.T) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	must(t, err)
	defer syscall.Close(pair[0])
	must(t, syscall.Sendmsg(pair[0], make([]byte, 160), syscall.UnixRights(0, 1, 2), nil, 0))
	file := os.NewFile(uintptr(pair[1]), "socket")
	conn, err := net.FileConn(file)
	file.Close()
	must(t, err)
	defer conn.Close()
	_, descriptors, err := (&peer{}).answer(conn.(*net.UnixConn))
	must(t, err)
	defer closeAll(descriptors)
	equal(t, len(descriptors), 3)
	for _, fd := range descriptors {
		flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0)
		equal(t, [2]uintptr{flags, uintptr(errno)}, [2]uintptr{syscall.FD_CLOEXEC, 0})
	}
}

func TestWhatCannotBeConnectedToIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lend")
	_, err := Connect(path, Options{})
	fails(t, err, ErrNoLender, "")
	equal(t, err.Error(), path+": there is no such socket: is the lender running?")
	fails(t, err, fs.ErrNotExist, "")
	equal(t, MayPass(err), true)

	listener := listen(t, path, syscall.SOCK_SEQPACKET)
	before := belongings(t)
	_, err = Connect(path, Options{})
	fails(t, err, ErrNoLender, path+": nobody listens there")
	equal(t, MayPass(err), true)
	must(t, syscall.Listen(listener, 0))
	_, err = Connect(path, Options{Timeout: 20 * time.Millisecond})
	fails(t, err, os.ErrDeadlineExceeded, path+": the lender did not answer within 20ms")
	equal(t, MayPass(err), true)
	// That one waits to be accepted, and there is no place for another.
	_, err = Connect(path, Options{Timeout: 20 * time.Millisecond})
	fails(t, err, os.ErrDeadlineExceeded, path+": the lender did not accept within 20ms")
	equal(t, belongings(t), before)

	stream := filepath.Join(t.TempDir(), "stream")
	must(t, syscall.Listen(listen(t, stream, syscall.SOCK_STREAM), 1))
	_, err = Connect(stream, Options{})
	fails(t, err, ErrProtocol, stream+": that is another kind of socket")
}

func TestALenderThatDoesNotTakeInIsNotWaitedForForLong(t *testing.T) {
	l := newLender(t, func(l *lender) { l.stopsAfterAnswer = true })
	before := belongings(t)
	_, err := Connect(l.path, Options{Timeout: 20 * time.Millisecond})
	fails(t, err, os.ErrDeadlineExceeded, "did not take us in within 20ms")
	<-l.done
	before[0]++ // The lender's.
	equal(t, belongings(t), before)
}

// listen makes a socket at a path, on which nobody listens yet.
func listen(t *testing.T, path string, kind int) int {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_UNIX, kind|syscall.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { syscall.Close(fd) })
	must(t, syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}))
	return fd
}

func TestOptionsThatCannotBeUsed(t *testing.T) {
	for _, name := range []string{strings.Repeat("x", 49), "a\x00b"} {
		_, err := Connect("/nowhere", Options{Name: name})
		fails(t, err, ErrInvalid, "expected at most 48 bytes")
		equal(t, MayPass(err), false)
	}
	_, err := Connect("/nowhere", Options{Mirror: true, Group: 3})
	fails(t, err, ErrInvalid, "a mirror in group 3")
	for _, path := range []string{"", strings.Repeat("x", 108), "/a\x00b"} {
		_, err := Connect(path, Options{Patience: -1})
		fails(t, err, ErrInvalid, "no path of a socket")
	}
	_, err = Connect("/"+strings.Repeat("x", 106), Options{})
	fails(t, err, ErrNoLender, "")
}

func TestAPathThatBeginsWithAnAtSignIsAFile(t *testing.T) {
	l := newLender(t, nil)
	folder := filepath.Dir(l.path)
	must(t, os.Rename(l.path, filepath.Join(folder, "@lend")))
	was, err := os.Getwd()
	must(t, err)
	must(t, os.Chdir(folder))
	defer os.Chdir(was)
	b, err := Connect("@lend", Options{})
	must(t, err)
	b.Close()
}

func TestPatienceIsForWhatMayPass(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lend")
	start := time.Now()
	_, err := Connect(path, Options{Patience: 150 * time.Millisecond})
	fails(t, err, ErrNoLender, "")
	if took := time.Since(start); took < 150*time.Millisecond {
		t.Fatalf("it gave up after %v", took)
	}

	for _, patience := range []time.Duration{time.Minute, -1} {
		l := newLender(t, func(l *lender) { l.refusals = 2 })
		must(t, os.Rename(l.path, path))
		shown := make(chan error, 1)
		time.AfterFunc(50*time.Millisecond, func() { shown <- os.Rename(path, l.path) })
		b, err := Connect(l.path, Options{Patience: patience})
		must(t, err)
		must(t, <-shown)
		must(t, b.Close())
	}

	// What does not pass is an error at once.
	l := newLender(t, func(l *lender) { l.welcome.version = 9 })
	_, err = Connect(l.path, Options{Patience: -1})
	fails(t, err, ErrProtocol, "version 9")
}

func TestAContextEndsWhatTakesLong(t *testing.T) {
	folder := t.TempDir()
	silent := filepath.Join(folder, "silent")
	must(t, syscall.Listen(listen(t, silent, syscall.SOCK_SEQPACKET), 0))
	full := filepath.Join(folder, "full")
	must(t, syscall.Listen(listen(t, full, syscall.SOCK_SEQPACKET), 0))
	waiting, err := net.Dial("unixpacket", full)
	must(t, err)
	defer waiting.Close()
	before := belongings(t)
	for _, path := range []string{filepath.Join(folder, "nobody"), silent, full} {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
		_, err := ConnectContext(ctx, path, Options{Timeout: time.Minute, Patience: -1})
		fails(t, err, context.DeadlineExceeded, path)
		cancel()
		_, err = ConnectContext(ctx, path, Options{Timeout: time.Minute, Patience: -1})
		fails(t, err, context.DeadlineExceeded, path)
		ctx, cancel = context.WithCancel(context.Background())
		time.AfterFunc(30*time.Millisecond, cancel)
		_, err = ConnectContext(ctx, path, Options{Timeout: time.Minute, Patience: -1})
		fails(t, err, context.Canceled, path)
	}
	equal(t, belongings(t), before)

	// Afterwards it means nothing.
	l := newLender(t, nil)
	ctx, cancel := context.WithCancel(context.Background())
	b, err := ConnectContext(ctx, l.path, Options{})
	must(t, err)
	defer b.Close()
	<-l.done
	cancel()
	result := inBackground(b, -1)
	l.untilAsleep()
	l.lend(0, 0, 1)
	equal(t, soon(t, result), slept{Ready, nil})
}
