package faultrun

import "golang.org/x/sys/unix"

// Where a filter finds what it decides by: offsets in the kernel's struct seccomp_data.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16
)

// filter returns the program that hands over the calls of rules, and lets all others pass.
func filter(rules []rule) []unix.SockFilter {
	program := []unix.SockFilter{
		load(offsetArch),
		skipUnless(arch, 1),
		skip(1),
		answer(unix.SECCOMP_RET_ALLOW), // numbers of another architecture
	}
	for _, r := range rules {
		program = append(program, r.code()...)
	}
	return append(program, answer(unix.SECCOMP_RET_ALLOW))
}

// code ends the program for the calls of the rule, and goes on behind itself for others.
func (r rule) code() []unix.SockFilter {
	if r.mask == 0 {
		return []unix.SockFilter{load(offsetNumber), skipUnless(r.number, 1), answer(unix.SECCOMP_RET_USER_NOTIF)}
	}
	return []unix.SockFilter{
		load(offsetNumber),
		skipUnless(r.number, 4),
		load(offsetArgs + 8*uint32(r.arg)), // the lower half, on the little-endian machines that there are numbers for
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: r.mask},
		skipUnless(r.value, 1),
		answer(unix.SECCOMP_RET_USER_NOTIF),
	}
}

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

// skipUnless skips count instructions unless what was loaded is value.
func skipUnless(value uint32, count uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jf: count}
}

func skip(count uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: count}
}

func answer(action uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
}
