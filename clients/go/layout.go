//go:build linux

package lend

import "unsafe"

// What stands where in the shared memories and in the messages of the handshake: versions 2 and 3.
// All numbers are in the machine's byte order. A test compares this with the lender's own layout.

// magic starts all messages of the handshake: the bytes "CLnd".
var magic = func() (word uint32) {
	*(*[4]byte)(unsafe.Pointer(&word)) = [4]byte{'C', 'L', 'n', 'd'}
	return word
}()

const (
	// The versions that this package speaks, oldest and newest.
	versionMin, versionMax = 2, 3
	// The first version that has groups.
	versionGroups = 3
	// Bytes of a block that one side writes.
	line = 128
	// The fewest slots of a ring.
	slotsMin = 32
	// More slots than a ring has, and more channels than a lender.
	slotsMax, channelsMax = 1 << 24, 1 << 12
	// In the flags of hello and welcome: every packet, beside the borrowers that share them out.
	helloMirror = 1
	// Where in these flags the group is: 16 bits.
	groupShift = 16
	// In a loan's flags: the packet goes on in the next loan.
	loanMore = 1
	// In a loan's flags: other borrowers have the frame too.
	loanShared = 2
	// In a loan's flags: its time is that of its packet alone.
	loanStamped = 4
	// Where the word asleep is in the memory back.
	asleepAt = 0
)

// Why nothing will follow. What is not known counts as endingLender.
const (
	// The lender did not say: something may follow, or it was killed.
	endingUnsaid = iota
	// The lender ended.
	endingLender
	// The borrower was disconnected for an offence.
	endingOffence
	// The borrower was evicted.
	endingEvicted
)

// A hello is what a borrower says first.
type hello struct {
	magic      uint32
	versionMin uint16
	versionMax uint16
	flags      uint32
	quota      uint32
	name       [48]byte
}

// A welcome is what the lender answers.
type welcome struct {
	magic      uint32
	version    uint16
	status     uint16
	frameSize  uint32
	frames     uint32
	areaLen    uint64
	quota      uint32
	slots      uint32
	channels   uint32
	flags      uint32
	outLen     uint64
	backLen    uint64
	versionMin uint16
	versionMax uint16
	reserved   uint32
	reason     [96]byte
}

// A mapped is what a borrower says once it has mapped what came with the welcome.
type mapped struct {
	magic uint32
}

// A slot is one loan in a ring in the memory out.
type slot struct {
	addr  uint64
	len   uint32
	token uint32
	flags uint32
	hash  uint32
	time  uint64
}

// An outHeader is at the start of a channel in the memory out; slots follow after line bytes.
type outHeader struct {
	producer uint32
	closed   uint32
	dropped  uint64
	ended    uint32 // in the first channel
	_        uint32
}

// A backHeader is at the start of a channel in the memory back; tokens follow after line bytes.
type backHeader struct {
	producer uint32
}

// Does not compile where a size is another one.
var (
	_ [64]byte  = [unsafe.Sizeof(hello{})]byte{}
	_ [160]byte = [unsafe.Sizeof(welcome{})]byte{}
	_ [4]byte   = [unsafe.Sizeof(mapped{})]byte{}
	_ [32]byte  = [unsafe.Sizeof(slot{})]byte{}
	_ [24]byte  = [unsafe.Sizeof(outHeader{})]byte{}
	_ [4]byte   = [unsafe.Sizeof(backHeader{})]byte{}
)

// outChannel says where a channel is in the memory out; of the number of channels, how long that
// memory is.
func outChannel(slots, channel uint32) uint64 {
	return uint64(channel) * (line + uint64(slots)*uint64(unsafe.Sizeof(slot{})))
}

// backChannel says where a channel is in the memory back; of the number of channels, how long that
// memory is.
func backChannel(slots, channel uint32) uint64 {
	return line + uint64(channel)*(line+uint64(slots)*4)
}
