//go:build linux && !cgo

#include "textflag.h"

// What the runtime calls in place of the system call, see atstart.go.
DATA _cgo_sigaction(SB)/8, $locksidecar_sigaction(SB)
GLOBL _cgo_sigaction(SB), NOPTR, $8

// int locksidecar_sigaction(int, const struct sigaction *, struct sigaction *), as C calls it.
TEXT locksidecar_sigaction(SB), NOSPLIT|NOFRAME, $0
	MOVW	·atStartKnown(SB), R9
	CBNZ	R9, done
	MOVD	$1, R9
	MOVW	R9, ·atStartKnown(SB)
	SUB	$48, RSP	// the kernel's struct sigaction has 32 bytes
	MOVD	ZR, R10	// those ignored
	MOVD	$1, R11	// a signal
next:
	MOVD	R11, R0
	MOVD	ZR, R1
	MOVD	RSP, R2
	MOVD	$8, R3
	MOVD	$134, R8	// rt_sigaction
	SVC
	CBNZ	R0, other
	MOVD	0(RSP), R12
	CMP	$1, R12	// SIG_IGN
	BNE	other
	SUB	$1, R11, R13
	MOVD	$1, R14
	LSL	R13, R14, R14
	ORR	R14, R10, R10
other:
	ADD	$1, R11
	CMP	$64, R11
	BLE	next
	MOVD	R10, ·ignoredAtStart(SB)
	ADD	$48, RSP
done:
	MOVD	$22, R0	// EINVAL: the runtime makes the system call itself
	RET
