//go:build linux

package lend

import (
	"fmt"
	"os"
	"testing"
)

// The borrower against the real lender, whose socket is $CACHELANE_LENDER.
//
// `cargo test -p cachelane-lend --test clients` starts it, with a lender that lends packets of 60
// bytes: UDP to port 53.
func TestEverythingThatIsLentIsReceivedAndGivenBack(t *testing.T) {
	path := os.Getenv("CACHELANE_LENDER")
	if path == "" {
		t.Skip("needs $CACHELANE_LENDER")
	}
	b, err := Connect(path, Options{Name: "go"})
	must(t, err)
	defer b.Close()
	packets, bytes := 0, 0
	loans := make([]Loan, 40)
	for {
		there, err := b.Wait(-1)
		must(t, err)
		if there == Closed {
			break
		}
		n, err := b.Receive(loans)
		must(t, err)
		if n == 0 || loans[n-1].More() {
			t.Fatalf("%v is cut", loans[:n])
		}
		for _, loan := range loans[:n] {
			if !loan.More() {
				packets++
			}
			bytes += loan.Len()
			if frame := b.Bytes(loan); frame[36] != 0 || frame[37] != 53 {
				t.Fatalf("another packet: % x", frame)
			}
		}
		b.GiveBack(loans[:n]...)
	}
	fmt.Printf("%d packets, %d bytes, %d dropped\n", packets, bytes, b.Dropped())
}
