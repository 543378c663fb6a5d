//go:build linux && !cgo

#include "textflag.h"

// What the runtime calls in place of the system call, see atstart.go.
DATA _cgo_sigaction(SB)/8, $locksidecar_sigaction(SB)
GLOBL _cgo_sigaction(SB), NOPTR, $8

// int locksidecar_sigaction(int, const struct sigaction *, struct sigaction *), as C calls it.
TEXT locksidecar_sigaction(SB), NOSPLIT|NOFRAME, $0
	CMPL	·atStartKnown(SB), $0
	JNE	done
	MOVL	$1, ·atStartKnown(SB)
	SUBQ	$40, SP	// the kernel's struct sigaction has 32 bytes
	XORL	R8, R8	// those ignored
	MOVL	$1, R9	// a signal
next:
	MOVL	$13, AX	// rt_sigaction
	MOVL	R9, DI
	XORL	SI, SI
	MOVQ	SP, DX
	MOVL	$8, R10
	SYSCALL
	TESTQ	AX, AX
	JNE	other
	CMPQ	0(SP), $1	// SIG_IGN
	JNE	other
	LEAQ	-1(R9), CX
	BTSQ	CX, R8
other:
	INCL	R9
	CMPL	R9, $64
	JLE	next
	MOVQ	R8, ·ignoredAtStart(SB)
	ADDQ	$40, SP
done:
	MOVL	$22, AX	// EINVAL: the runtime makes the system call itself
	RET
