//go:build linux

package lend

import (
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

const (
	testFrames   = 16
	testFrame    = 2048
	testSlots    = 32
	testChannels = 2
	testQuota    = 24
)

// A lender is made by hand and can be out of step. It answers one connection on a socket of its own,
// in a goroutine.
type lender struct {
	t               *testing.T
	path            string
	listener        *net.UnixListener
	fds             []int
	area, out, back []byte
	loans           [testChannels][]slot
	outs            [testChannels]*outHeader
	backs           [testChannels]*backHeader
	tokens          [testChannels][]uint32
	asleep          *uint32
	next, taken     [testChannels]uint32
	woken           uint32
	welcome         welcome
	hello           hello
	conn            *net.UnixConn
	done            chan struct{}
	// So many connections are refused before the one that is answered.
	refusals int
	// Answers in the place of the lender.
	answerFor func(*lender)
	// Says no more than the welcome.
	stopsAfterAnswer bool
}

// newLender starts a lender, which change can change before.
func newLender(t *testing.T, change func(*lender)) *lender {
	t.Helper()
	l := &lender{t: t, path: filepath.Join(t.TempDir(), "lend"), done: make(chan struct{})}
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: l.path, Net: "unixpacket"})
	must(t, err)
	l.listener = listener
	lengths := []int{
		testFrames * testFrame,
		int(outChannel(testSlots, testChannels)),
		int(backChannel(testSlots, testChannels)),
	}
	mappings := []*[]byte{&l.area, &l.out, &l.back}
	for at, length := range lengths {
		l.fds = append(l.fds, memory(t, length, true))
		// A memory of the test's own, which the borrower's mappings are not counted with.
		mapping, err := syscall.Mmap(l.fds[at], 0, length, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
		must(t, err)
		*mappings[at] = mapping
	}
	for number := range l.loans {
		out := l.out[outChannel(testSlots, uint32(number)):]
		back := l.back[backChannel(testSlots, uint32(number)):]
		l.outs[number] = (*outHeader)(unsafe.Pointer(&out[0]))
		l.loans[number] = unsafe.Slice((*slot)(unsafe.Pointer(&out[line])), testSlots)
		l.backs[number] = (*backHeader)(unsafe.Pointer(&back[0]))
		l.tokens[number] = unsafe.Slice((*uint32)(unsafe.Pointer(&back[line])), testSlots)
	}
	l.asleep = (*uint32)(unsafe.Pointer(&l.back[asleepAt]))
	l.welcome = welcome{
		magic: magic, version: 3, frameSize: testFrame, frames: testFrames,
		areaLen: uint64(lengths[0]), quota: testQuota, slots: testSlots, channels: testChannels,
		outLen: uint64(lengths[1]), backLen: uint64(lengths[2]), versionMin: 2, versionMax: 3,
	}
	if change != nil {
		change(l)
	}
	go l.answer()
	t.Cleanup(l.end)
	return l
}

func (l *lender) answer() {
	defer close(l.done)
	for ; ; l.refusals-- {
		conn, err := l.listener.AcceptUnix()
		if err != nil {
			return
		}
		l.conn = conn
		if l.refusals == 0 {
			break
		}
		l.hear()
		busy := l.welcome
		busy.status = uint16(StatusBusy)
		l.say(bytesOf(&busy)[:], nil)
		conn.Close()
	}
	if l.answerFor != nil {
		l.answerFor(l)
		return
	}
	l.hear()
	l.say(bytesOf(&l.welcome)[:], l.fds)
	if l.stopsAfterAnswer {
		return
	}
	var said [64]byte
	// Nothing, if it has not liked what it got.
	if n, err := l.conn.Read(said[:]); err == nil {
		if want := (mapped{magic}); string(said[:n]) != string((*[4]byte)(unsafe.Pointer(&want))[:]) {
			l.t.Errorf("mapped is % x", said[:n])
		}
		l.ring()
	}
}

// hear receives the hello.
func (l *lender) hear() {
	message := (*[unsafe.Sizeof(l.hello)]byte)(unsafe.Pointer(&l.hello))
	if n, err := l.conn.Read(message[:]); n != len(message) {
		l.t.Errorf("hello: %d bytes, %v", n, err)
	}
}

// untilSaid waits until there is something to hear.
func (l *lender) untilSaid() {
	raw, err := l.conn.SyscallConn()
	if err == nil {
		err = raw.Read(func(fd uintptr) bool {
			_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK)
			return err != syscall.EAGAIN
		})
	}
	if err != nil {
		l.t.Errorf("waiting for the hello: %v", err)
	}
}

// say sends a message with descriptors.
func (l *lender) say(message []byte, descriptors []int) {
	var rights []byte
	if len(descriptors) > 0 {
		rights = syscall.UnixRights(descriptors...)
	}
	if _, _, err := l.conn.WriteMsgUnix(message, rights, nil); err != nil {
		l.t.Errorf("an answer: %v", err)
	}
}

func bytesOf(of *welcome) *[160]byte { return (*[160]byte)(unsafe.Pointer(of)) }

var wakeUp = []byte("x")

// ring wakes the borrower.
func (l *lender) ring() {
	if _, err := l.conn.Write(wakeUp); err != nil {
		l.t.Errorf("a wake-up: %v", err)
	}
}

// put puts a loan into a ring.
func (l *lender) put(channel int, loan slot) {
	l.loans[channel][l.next[channel]%testSlots] = loan
	l.next[channel]++
}

// publish publishes, and wakes a sleeper: whether there was one.
func (l *lender) publish(channel int) bool {
	atomic.StoreUint32(&l.outs[channel].producer, l.next[channel])
	asleep := atomic.LoadUint32(l.asleep)
	if asleep%2 == 0 || asleep == l.woken {
		return false
	}
	l.woken = asleep
	l.ring()
	return true
}

// lend lends packets of so many parts. A loan's number is its token and its first bytes.
func (l *lender) lend(channel int, first uint32, packets ...int) {
	for _, parts := range packets {
		for part := 1; part <= parts; part++ {
			addr := uint64(first%testFrames*testFrame + 64)
			binary.LittleEndian.PutUint32(l.area[addr:], first)
			flags := uint32(loanShared)
			if part < parts {
				flags = loanMore
			}
			l.put(channel, slot{addr: addr, len: 100 + first, token: first, flags: flags, hash: 5, time: 7})
			first++
		}
	}
	l.publish(channel)
}

// returned gives the tokens that came back since the last time.
func (l *lender) returned(channel int) (tokens []uint32) {
	producer := atomic.LoadUint32(&l.backs[channel].producer)
	for ; l.taken[channel] != producer; l.taken[channel]++ {
		tokens = append(tokens, l.tokens[channel][l.taken[channel]%testSlots])
	}
	return tokens
}

func (l *lender) sayClosed(channel int) { atomic.StoreUint32(&l.outs[channel].closed, 1) }

func (l *lender) sayWhy(ending uint32) { atomic.StoreUint32(&l.outs[0].ended, ending) }

// untilAsleep waits until somebody sleeps who was not woken.
func (l *lender) untilAsleep() {
	until := time.Now().Add(20 * time.Second)
	for {
		asleep := atomic.LoadUint32(l.asleep)
		if asleep%2 == 1 && asleep != l.woken {
			return
		}
		if time.Now().After(until) {
			l.t.Fatal("nobody sleeps")
		}
		runtime.Gosched()
	}
}

// hangUp closes the connection.
func (l *lender) hangUp() {
	l.conn.Close()
	l.conn = nil
}

func (l *lender) end() {
	l.listener.Close()
	<-l.done
	if l.conn != nil {
		l.conn.Close()
	}
	for _, fd := range l.fds {
		syscall.Close(fd)
	}
	for _, mapping := range [][]byte{l.area, l.out, l.back} {
		unmap(mapping)
	}
}

// connected is a lender, and a borrower that it has taken in.
func connected(t *testing.T, options Options) (*lender, *Borrower) {
	t.Helper()
	l := newLender(t, func(l *lender) { l.welcome.flags = options.flags() })
	b, err := Connect(l.path, options)
	must(t, err)
	t.Cleanup(func() {
		b.Close()
		// Not when the garbage is collected: tests count mappings.
		b.unmapArea()
	})
	<-l.done
	return l, b
}

func (o *Options) flags() uint32 {
	said, _ := o.hello()
	return said.flags
}

// memory makes memory that cannot shrink, or can.
func memory(t *testing.T, length int, sealed bool) int {
	t.Helper()
	// memfd_create is not in the package syscall.
	number, isKnown := map[string]uintptr{
		"386": 356, "amd64": 319, "arm": 385, "arm64": 279, "loong64": 279, "mips64": 5314,
		"mips64le": 5314, "ppc64": 360, "ppc64le": 360, "riscv64": 279, "s390x": 350,
	}[runtime.GOARCH]
	if !isKnown {
		t.Skipf("the number of memfd_create on %s is not known", runtime.GOARCH)
	}
	const closeOnExec, allowSealing, addSeals = 1, 2, 1033
	name := [...]byte{'l', 'e', 'n', 'd', 't', 'e', 's', 't', 0}
	fd, _, errno := syscall.Syscall(number, uintptr(unsafe.Pointer(&name)), closeOnExec|allowSealing, 0)
	if errno != 0 {
		t.Fatal("memfd_create:", errno)
	}
	must(t, syscall.Ftruncate(int(fd), int64(length)))
	if sealed {
		if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, fd, addSeals, fSealShrink); errno != 0 {
			t.Fatal("seals:", errno)
		}
	}
	return int(fd)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// belongings counts the process's open files, and its mappings of lenders' memory.
func belongings(t *testing.T) [2]int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	maps, err := os.ReadFile("/proc/self/maps")
	must(t, err)
	return [2]int{len(files), strings.Count(string(maps), "memfd:lendtest")}
}
