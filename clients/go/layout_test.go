//go:build linux

package lend

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"unsafe"
)

// ours is sizes, offsets and constants under the names that the lender gives them.
func ours() map[string]uint64 {
	found := map[string]uint64{
		"MAGIC":          uint64(magic),
		"VERSION_MIN":    versionMin,
		"VERSION_MAX":    versionMax,
		"VERSION_GROUPS": versionGroups,
		"LINE":           line,
		"SLOTS_MIN":      slotsMin,
		"HELLO_MIRROR":   helloMirror,
		"GROUP_SHIFT":    groupShift,
		"LOAN_MORE":      loanMore,
		"LOAN_SHARED":    loanShared,
		"LOAN_STAMPED":   loanStamped,
		"ASLEEP":         asleepAt,
		"WELCOME":        uint64(StatusWelcome),
		"VERSION":        uint64(StatusVersion),
		"INVALID":        uint64(StatusInvalid),
		"FULL":           uint64(StatusFull),
		"QUOTA":          uint64(StatusQuota),
		"BUSY":           uint64(StatusBusy),
		"MIRROR":         uint64(StatusMirror),
		"CLOSING":        uint64(StatusClosing),
		"DENIED":         uint64(StatusDenied),
		"UNSAID":         endingUnsaid,
		"LENDER":         endingLender,
		"OFFENCE":        endingOffence,
		"EVICTED":        endingEvicted,
		"out_channel":    outChannel(64, 3),
		"back_channel":   backChannel(64, 3),
	}
	for name, of := range map[string]any{
		"hello": hello{}, "welcome": welcome{}, "mapped": mapped{}, "loan": slot{},
		"out": outHeader{}, "back": backHeader{},
	} {
		kind := reflect.TypeOf(of)
		found[name] = uint64(kind.Size())
		for at := 0; at < kind.NumField(); at++ {
			field := kind.Field(at)
			if field.Name != "_" {
				key := name + "." + underscored(field.Name)
				found[key] = uint64(field.Offset)
				found[key+".size"] = uint64(field.Type.Size())
			}
		}
	}
	return found
}

// underscored is frame_size for frameSize.
func underscored(name string) string {
	var to strings.Builder
	for _, char := range name {
		if char >= 'A' && char <= 'Z' {
			to.WriteByte('_')
		}
		to.WriteRune(char)
	}
	return strings.ToLower(to.String())
}

func TestLayoutIsTheLenders(t *testing.T) {
	path := os.Getenv("CACHELANE_LAYOUT")
	if path == "" {
		t.Skip("needs $CACHELANE_LAYOUT")
	}
	list, err := os.ReadFile(path)
	must(t, err)
	theirs := map[string]uint64{}
	for _, line := range strings.Split(strings.TrimSpace(string(list)), "\n") {
		var name string
		var value uint64
		_, err := fmt.Sscan(line, &name, &value)
		must(t, err)
		theirs[name] = value
	}
	equal(t, ours(), theirs)
}

func TestALoanIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(Loan{}); size > 40 {
		t.Fatalf("it has %d bytes", size)
	}
}

func TestChannelsAreWhereTheDocumentHasThem(t *testing.T) {
	equal(t, [2]uint64{outChannel(64, 1) + line, outChannel(64, 2)}, [2]uint64{2304, 4352})
	equal(t, [2]uint64{backChannel(64, 1) + line, backChannel(64, 2)}, [2]uint64{640, 896})
}
