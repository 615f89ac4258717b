//go:build linux

package lend_test

import (
	"fmt"
	"log"

	"cachelane/lend"
)

// Prints the length of each packet until the lender ends.
func Example() {
	borrower, err := lend.Connect("/run/lend", lend.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer borrower.Close()
	loans := make([]lend.Loan, 64)
	for {
		there, err := borrower.Wait(-1)
		if err != nil {
			log.Fatal(err)
		}
		if there == lend.Closed {
			break
		}
		n, err := borrower.Receive(loans)
		for _, loan := range loans[:n] {
			frame := borrower.Bytes(loan) // in the lender's memory, until the loan goes back
			fmt.Printf("%d bytes, from % x\n", len(frame), frame[6:12])
		}
		borrower.GiveBack(loans[:n]...)
		if err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(borrower.Dropped(), "dropped")
}
