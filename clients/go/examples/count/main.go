//go:build linux

// Count counts the packets that a lender lends, until the lender ends or a signal comes.
//
//	go build && ./count /run/lend
package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"cachelane/lend"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintf(os.Stderr, "usage: %s SOCKET\n", os.Args[0])
		os.Exit(2)
	}
	if err := count(os.Args[1]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[0], err)
		os.Exit(1)
	}
}

func count(path string) error {
	borrower, err := lend.Connect(path, lend.Options{})
	if err != nil {
		return err
	}
	defer borrower.Close()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		// Ends the loop below.
		borrower.Close()
	}()

	var packets, bytes uint64
	loans := make([]lend.Loan, 256)
	for there := lend.Ready; there != lend.Closed; {
		n, err := borrower.Receive(loans)
		for _, loan := range loans[:n] {
			// A packet in several frames counts once.
			if !loan.More() {
				packets++
			}
			bytes += uint64(loan.Len())
		}
		borrower.GiveBack(loans[:n]...)
		if n == 0 && err == nil {
			there, err = borrower.Wait(-1)
		}
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil {
			return err
		}
	}
	fmt.Printf("%d packets, %d bytes, %d dropped\n", packets, bytes, borrower.Dropped())
	return nil
}
