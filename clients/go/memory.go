//go:build linux

package lend

import "syscall"

// Not in the package syscall.
const (
	fGetSeals         = 1034
	fSealShrink       = 2
	madvPopulateRead  = 22
	madvPopulateWrite = 23
)

// isSealed says whether memory cannot shrink, so that reading it cannot fail.
func isSealed(fd int) bool {
	seals, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), fGetSeals, 0)
	return errno == 0 && seals&fSealShrink != 0
}

// mapMemory maps so many bytes of memory that has them.
func mapMemory(fd, length int, writable bool) ([]byte, error) {
	access, populate := syscall.PROT_READ, madvPopulateRead
	if writable {
		access, populate = access|syscall.PROT_WRITE, madvPopulateWrite
	}
	memory, err := syscall.Mmap(fd, 0, length, access, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	// Memory that is not there is an error now, and no signal later.
	if err := syscall.Madvise(memory, populate); err != nil {
		unmap(memory)
		return nil, err
	}
	return memory, nil
}

// unmap ends a mapping, if there is one.
func unmap(memory []byte) {
	if memory != nil {
		// It fails for what is no mapping, and nothing else.
		_ = syscall.Munmap(memory)
	}
}
