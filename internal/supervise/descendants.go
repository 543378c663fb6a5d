package supervise

import (
	"bytes"
	"os"
	"strconv"
)

// relative is a process that descends from this one.
type relative struct{ pid, group int }

// descendants are all processes below this one that have not ended.
func descendants() ([]relative, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	children := map[int][]relative{}
	alive := map[int]bool{}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if state, parent, group, ok := readStat(pid); ok { // else it has ended meanwhile
			children[parent] = append(children[parent], relative{pid, group})
			alive[pid] = state != 'Z' && state != 'X'
		}
	}
	var found []relative
	for next := []int{os.Getpid()}; len(next) > 0; next = next[1:] {
		for _, c := range children[next[0]] {
			next = append(next, c.pid)
			if alive[c.pid] {
				found = append(found, c)
			}
		}
	}
	return found, nil
}

// readStat tells about one process; not ok: it is not there.
func readStat(pid int) (state byte, parent, group int, ok bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, 0, false
	}
	return parseStat(stat)
}

// parseStat reads /proc/PID/stat, see proc(5). The name, in parentheses, may
// have anything in it, also parentheses.
func parseStat(stat []byte) (state byte, parent, group int, ok bool) {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return 0, 0, 0, false
	}
	fields := bytes.Fields(stat[end+1:])
	if len(fields) < 3 || len(fields[0]) != 1 {
		return 0, 0, 0, false
	}
	parent, err1 := strconv.Atoi(string(fields[1]))
	group, err2 := strconv.Atoi(string(fields[2]))
	return fields[0][0], parent, group, err1 == nil && err2 == nil
}
