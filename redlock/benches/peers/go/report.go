package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// reportMain prints results files as Markdown: first how one peer ("ours") does
// against the best of the others in each cell, then every row.
func reportMain(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: report OUR-PEER FILE...")
	}
	rep := report{ours: args[0], cells: map[cellKey]map[string][]row{}}
	for _, name := range args[1:] {
		if err := rep.read(name); err != nil {
			return err
		}
	}
	fmt.Print(rep.markdown())
	return nil
}

type row map[string]any

type cellKey struct {
	fault, workload string
	clients         int
}

type report struct {
	ours  string
	meta  row
	order []cellKey // as measured
	cells map[cellKey]map[string][]row
}

func (r *report) read(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		line := row(lastJSON(sc.Bytes()))
		if meta, ok := line["meta"].(map[string]any); ok {
			r.meta = meta
		}
		peer, _ := line["peer"].(string)
		if peer == "" {
			continue
		}
		key := cellKey{line.text("fault"), line.text("workload"), int(number(line["clients"]))}
		if r.cells[key] == nil {
			r.cells[key] = map[string][]row{}
			r.order = append(r.order, key)
		}
		r.cells[key][peer] = append(r.cells[key][peer], line)
	}
	return sc.Err()
}

func (l row) text(field string) string { s, _ := l[field].(string); return s }

// median is the peer's row whose rate is the median one of all rounds.
func median(rounds []row) row {
	sorted := slices.Clone(rounds)
	sort.SliceStable(sorted, func(i, j int) bool { return number(sorted[i]["ops_per_s"]) < number(sorted[j]["ops_per_s"]) })
	return sorted[len(sorted)/2]
}

// cell is the rows of a cell, one a peer.
func (r *report) cell(key cellKey) map[string]row {
	rows := map[string]row{}
	for peer, rounds := range r.cells[key] {
		rows[peer] = median(rounds)
	}
	return rows
}

// measure is something that a cell is compared by.
type measure struct {
	title  string
	of     func(row) (float64, bool)
	higher bool // more is better
	show   func(float64) string
}

func field(name string) func(row) (float64, bool) {
	return func(l row) (float64, bool) {
		_, ok := l[name].(json.Number)
		return number(l[name]), ok
	}
}

// longestWait counts also the one that was still going on at the end.
func longestWait(l row) (float64, bool) {
	_, ok := l["max_us"].(json.Number)
	pending := number(l["pending_us"])
	return max(number(l["max_us"]), pending), ok || pending > 0
}

var (
	throughput = measure{"operations per second", field("ops_per_s"), true, short}
	p50        = measure{"median latency", field("p50_us"), false, millis}
	p99        = measure{"99th percentile", field("p99_us"), false, millis}
	longest    = measure{"longest wait", longestWait, false, millis}
	cpu        = measure{"processor time per operation", field("cpu_us_per_op"), false, micros}
	serverCPU  = measure{"all servers' processor time per operation", field("server_cpu_us_per_op"), false, micros}
)

// short has three digits that mean something.
func short(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}

func millis(us float64) string { return short(us/1000) + " ms" }
func micros(us float64) string { return short(us) + " µs" }

// class tells whom a peer may be compared with.
type class int

const (
	independent class = iota // a lock on N independent Redis servers
	one                      // a lock on one Redis server
	zookeeper
)

func (r *report) class(peer string, l row) class {
	switch {
	case strings.HasPrefix(peer, "curator"):
		return zookeeper
	case number(l["masters"]) > 1:
		return independent
	default:
		return one
	}
}

// best is the peer, other than ours, that does best; rows without any result do not count.
func (r *report) best(rows map[string]row, m measure, classes ...class) (string, float64) {
	name, best := "", 0.0
	for peer, l := range rows {
		v, ok := m.of(l)
		if peer == r.ours || !ok || number(l["ops"]) == 0 || !slices.Contains(classes, r.class(peer, l)) {
			continue
		}
		if name == "" || (m.higher && v > best) || (!m.higher && v < best) || (v == best && peer < name) {
			name, best = peer, v
		}
	}
	return name, best
}

func (k cellKey) label() string {
	label := fmt.Sprintf("%s, %d", k.workload, k.clients)
	if k.clients == 1 {
		label += " client"
	} else {
		label += " clients"
	}
	if k.fault != "none" {
		label += ", " + faultLabel(k.fault)
	}
	return label
}

func faultLabel(fault string) string {
	kind, mid := strings.CutSuffix(fault, "@mid")
	if ms, ok := strings.CutPrefix(kind, "slow="); ok {
		kind = "one master " + ms + " ms slower"
	} else {
		kind = "one master " + kind
	}
	if mid {
		kind += " from the middle on"
	}
	return kind
}

func (r *report) markdown() string {
	var b strings.Builder
	if r.meta != nil {
		fmt.Fprintf(&b, "Measured on %s with %v cores of %s, Redis %s, %v s a cell, %v round(s); others kept %v cores busy.\n\n",
			strings.TrimSuffix(strings.SplitN(r.meta.text("date"), "T", 2)[0], "Z"), r.meta["cores"], r.meta["cpu"],
			r.meta["redis"], r.meta["seconds"], r.meta["rounds"], r.meta["background_cores"])
	}
	compared := slices.DeleteFunc(slices.Clone(r.order), func(k cellKey) bool {
		return len(r.cells[k]) < 2 || r.cells[k][r.ours] == nil
	})
	for _, m := range []measure{throughput, p99, longest, cpu} {
		r.summary(&b, m, compared)
	}
	r.ownTable(&b)
	b.WriteString("<details>\n<summary>All rows</summary>\n")
	for _, key := range compared {
		r.detail(&b, key)
	}
	r.ceilings(&b)
	b.WriteString("\n</details>\n")
	return b.String()
}

// summary is a line a cell: ours, the best other on independent masters, and the best that does less.
func (r *report) summary(b *strings.Builder, m measure, cells []cellKey) {
	better := "less"
	if m.higher {
		better = "more"
	}
	fmt.Fprintf(b, "**%s** (%s is better)\n\n", strings.ToUpper(m.title[:1])+m.title[1:], better)
	b.WriteString("| cell | ours | best other on all masters | ours to it | best other on one Redis or ZooKeeper | ours to it |\n")
	b.WriteString("| --- | --: | --- | --: | --- | --: |\n")
	for _, key := range cells {
		rows := r.cell(key)
		ours, ok := m.of(rows[r.ours])
		shown := "-"
		if ok {
			shown = m.show(ours)
		}
		fmt.Fprintf(b, "| %s | %s |", key.label(), shown)
		for _, classes := range [][]class{{independent}, {one, zookeeper}} {
			peer, v := r.best(rows, m, classes...)
			if peer == "" {
				b.WriteString(" - | |")
				continue
			}
			ratio := "-"
			if ok && v > 0 {
				ratio = short(ours/v) + " ×"
			}
			fmt.Fprintf(b, " %s %s | %s |", m.show(v), peer, ratio)
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
}

// detail is every peer's row of a cell.
func (r *report) detail(b *strings.Builder, key cellKey) {
	rows := r.cell(key)
	peers := make([]string, 0, len(rows))
	for peer := range rows {
		peers = append(peers, peer)
	}
	sort.Slice(peers, func(i, j int) bool {
		a, c := rows[peers[i]], rows[peers[j]]
		if x, y := number(a["ops_per_s"]), number(c["ops_per_s"]); x != y {
			return x > y
		}
		return peers[i] < peers[j]
	})
	fmt.Fprintf(b, "\n**%s**\n\n", strings.ToUpper(key.label()[:1])+key.label()[1:])
	b.WriteString("| peer | servers | ops/s | median | p99 | longest wait | fairness | starved | CPU/op | servers' CPU/op | peak RSS | errors | violations |\n")
	b.WriteString("| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |\n")
	for _, peer := range peers {
		l := rows[peer]
		if l["error"] != nil {
			fmt.Fprintf(b, "| %s | no result: %v |||||||||||\n", peer, l["error"])
			continue
		}
		name := peer
		if peer == r.ours {
			name = "**" + peer + "**"
		}
		fmt.Fprintf(b, "| %s | %v |", name, l["masters"])
		for _, m := range []measure{throughput, p50, p99, longest} {
			fmt.Fprintf(b, " %s |", shown(l, m))
		}
		fmt.Fprintf(b, " %v | %v |", l["fairness"], l["starved"])
		for _, m := range []measure{cpu, serverCPU} {
			fmt.Fprintf(b, " %s |", shown(l, m))
		}
		fmt.Fprintf(b, " %s MB | %v | %v |\n", short(number(l["max_rss_kb"])/1024), l["errors"], l["violations"])
	}
}

func shown(l row, m measure) string {
	if v, ok := m.of(l); ok {
		return m.show(v)
	}
	return "-"
}

// ownTable is of the workloads that only ours has.
func (r *report) ownTable(b *strings.Builder) {
	lines := ""
	for _, key := range r.order {
		if key.workload != "keep" && key.workload != "idle-one" {
			continue
		}
		l := r.cell(key)[r.ours]
		if l == nil || l["error"] != nil {
			continue
		}
		lines += fmt.Sprintf("| %d | %s s | %v | %v | %s %% | %s MB | %s B |\n", key.clients,
			short(number(l["ttl_ms"])/1000), l["renewals"], l["lost"], short(number(l["cpu_share_of_core"])*100),
			short(number(l["rss_kb"])/1024), short(number(l["rss_bytes_per_lease"])))
	}
	if lines != "" {
		b.WriteString("**Keeping leases** (ours only)\n\n| leases | TTL | renewals in the window | lost | of one core | resident | resident per lease |\n" +
			"| --: | --: | --: | --: | --: | --: | --: |\n" + lines + "\n")
	}
}

func (r *report) ceilings(b *strings.Builder) {
	for _, key := range r.order {
		for _, peer := range []string{"ceiling", "ceiling-all"} {
			if l := r.cell(key)[peer]; l != nil {
				fmt.Fprintf(b, "\n`%s`: %s plain `SET` round trips per second on %v server(s), by redis-benchmark with 16 connections.\n",
					peer, short(number(l["ops_per_s"])), l["masters"])
			}
		}
	}
}
