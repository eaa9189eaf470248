package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// freePortsMain prints that many loopback ports that were free just now.
func freePortsMain(args []string) error {
	fs := flag.NewFlagSet("freeports", flag.ContinueOnError)
	count := fs.Int("count", 1, "how many")
	if err := fs.Parse(args); err != nil {
		return err
	}
	for range *count {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer ln.Close()
		fmt.Println(ln.Addr().(*net.TCPAddr).Port)
	}
	return nil
}

// firstKeys is the order in which a result's fields are written.
var firstKeys = []string{
	"peer", "workload", "fault", "masters", "clients", "ops_per_s", "p50_us", "p99_us", "p999_us",
	"errors", "violations", "cpu_us_per_op", "server_cpu_us_per_op", "max_rss_kb",
}

// measureMain runs one peer, adds what the operating system says of it to its
// JSON line, and appends that line to a file.
func measureMain(args []string) error {
	fs := flag.NewFlagSet("measure", flag.ContinueOnError)
	out := fs.String("out", "", "file that the line is appended to")
	fault := fs.String("fault", "none", "label of the fault in force")
	servers := fs.String("servers", "", "process ids of the servers, comma separated")
	timeout := fs.Float64("timeout", 60, "seconds after which the peer is ended")
	peer := fs.String("peer", "", "name, for a peer that prints nothing")
	workload := fs.String("workload", "", "likewise")
	clients := fs.Int("clients", 0, "likewise")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		return errors.New("measure: no command")
	}
	pids := []string{}
	if *servers != "" {
		pids = strings.Split(*servers, ",")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(*timeout*float64(time.Second)))
	defer cancel()
	cmd := exec.CommandContext(ctx, fs.Arg(0), fs.Args()[1:]...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	serverCPU := serverSeconds(pids)
	runErr := cmd.Start()
	var peak int64
	if runErr == nil {
		stop := make(chan struct{})
		watched := make(chan int64)
		go func() { watched <- watchPeak(cmd.Process.Pid, stop) }()
		runErr = cmd.Wait()
		close(stop)
		peak = <-watched
	}
	serverCPU = serverSeconds(pids) - serverCPU
	row := lastJSON(stdout.Bytes())
	if row == nil {
		reason := "no JSON line"
		if ctx.Err() != nil {
			reason = "ended after the time limit"
		} else if runErr != nil {
			reason = runErr.Error()
		}
		row = map[string]any{"peer": *peer, "workload": *workload, "clients": *clients,
			"error": reason, "stderr": tail(stderr.String(), 300)}
	}
	row["fault"] = *fault
	if st := cmd.ProcessState; st != nil {
		cpu := (st.UserTime() + st.SystemTime()).Seconds()
		row["proc_cpu_s"] = round(cpu, 3)
		if ru, ok := st.SysUsage().(*syscall.Rusage); ok {
			row["max_rss_kb"] = ru.Maxrss
		}
		if peak > 0 { // rusage's figure starts from this process's own, the peer's parent
			row["max_rss_kb"] = peak
		}
		addPerOp(row, cpu, serverCPU, len(pids) > 0)
	}
	line := encodeRow(row)
	fmt.Println(line)
	if *out == "" {
		return nil
	}
	f, err := os.OpenFile(*out, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintln(f, line)
	return err
}

// addPerOp adds the processor time per operation. A peer that states the
// processor time of its measured window gets that over the window's
// operations; else the whole process's, start included, over all operations.
func addPerOp(row map[string]any, procCPU, serverCPU float64, haveServers bool) {
	opsPerS, seconds := number(row["ops_per_s"]), number(row["seconds"])
	ops, total := number(row["ops"]), number(row["ops_total"])
	if ops == 0 {
		ops = opsPerS * seconds
	}
	if total == 0 {
		total = ops
	}
	if ops > 0 {
		if window := number(row["window_cpu_s"]); window > 0 {
			row["cpu_us_per_op"] = round(window*1e6/ops, 1)
		} else {
			row["cpu_us_per_op"] = round(procCPU*1e6/total, 1)
		}
	}
	if total > 0 && haveServers {
		row["server_cpu_us_per_op"] = round(serverCPU*1e6/total, 1)
	}
}

func number(v any) float64 {
	if n, ok := v.(json.Number); ok {
		f, _ := n.Float64()
		return f
	}
	return 0
}

// watchPeak samples the process's peak resident size in KiB until stop.
func watchPeak(pid int, stop <-chan struct{}) int64 {
	var peak int64
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		for line := range strings.Lines(string(status)) {
			if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
				kb, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
				peak = max(peak, kb)
			}
		}
		select {
		case <-stop:
			return peak
		case <-tick.C:
		}
	}
}

// serverSeconds is the processor time of those processes so far.
func serverSeconds(pids []string) float64 {
	ticks := 0.0
	for _, pid := range pids {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			continue
		}
		// the name in brackets may hold spaces: fields are counted after it
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		for _, i := range []int{11, 12} {
			t, _ := strconv.ParseFloat(fields[i], 64)
			ticks += t
		}
	}
	return ticks / 100 // USER_HZ
}

func lastJSON(out []byte) map[string]any {
	var row map[string]any
	sc := bufio.NewScanner(bytes.NewReader(out))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		line := bytes.TrimSpace(sc.Bytes())
		if len(line) == 0 || line[0] != '{' {
			continue
		}
		dec := json.NewDecoder(bytes.NewReader(line))
		dec.UseNumber()
		m := map[string]any{}
		if dec.Decode(&m) == nil {
			row = m
		}
	}
	return row
}

func tail(s string, n int) string {
	s = strings.TrimSpace(s)
	if len(s) > n {
		s = s[len(s)-n:]
	}
	return s
}

func encodeRow(row map[string]any) string {
	keys := []string{}
	for _, k := range firstKeys {
		if _, ok := row[k]; ok {
			keys = append(keys, k)
		}
	}
	rest := []string{}
	for k := range row {
		if !slices.Contains(firstKeys, k) {
			rest = append(rest, k)
		}
	}
	slices.Sort(rest)
	var b strings.Builder
	for i, k := range append(keys, rest...) {
		v, _ := json.Marshal(row[k])
		b.WriteString(map[bool]string{true: "{", false: ","}[i == 0])
		fmt.Fprintf(&b, "%q:%s", k, v)
	}
	b.WriteString("}")
	return b.String()
}

// tableMain prints a results file as a table.
func tableMain(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: table FILE")
	}
	f, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer f.Close()
	tw := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	cols := []string{"peer", "workload", "fault", "masters", "clients", "ops_per_s", "p50_us", "p99_us", "p999_us",
		"errors", "violations", "starved", "fairness", "pending_us", "hold_us", "cpu_us_per_op", "server_cpu_us_per_op", "max_rss_kb", "error"}
	heads := []string{"peer", "workload", "fault", "masters", "cl", "ops/s", "p50us", "p99us", "p999us",
		"err", "viol", "starved", "fair", "pend_us", "hold_us", "cpu/op", "srv/op", "rss_kb", ""}
	fmt.Fprintln(tw, strings.Join(heads, "\t")+"\t")
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		row := lastJSON(sc.Bytes())
		if row == nil || row["peer"] == nil {
			continue
		}
		cells := make([]string, len(cols))
		for i, c := range cols {
			cells[i] = cell(row[c], c == "error")
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t")+"\t")
	}
	if err := sc.Err(); err != nil {
		return err
	}
	return tw.Flush()
}

func cell(v any, blank bool) string {
	switch t := v.(type) {
	case nil:
		if blank {
			return ""
		}
		return "-"
	case json.Number:
		f, err := t.Float64()
		if err != nil || !strings.Contains(t.String(), ".") {
			return t.String()
		}
		if f >= 100 {
			return strconv.FormatFloat(f, 'f', 0, 64)
		}
		return strconv.FormatFloat(round(f, 2), 'f', -1, 64)
	default:
		return fmt.Sprint(v)
	}
}
