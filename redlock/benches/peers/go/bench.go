package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	holdTime     = time.Millisecond      // work done inside a contended critical section
	handoffHold  = 5 * time.Millisecond  // how long the holder keeps the lock once the other side is waiting
	errorPause   = 10 * time.Millisecond // pause after a library error, so that an outage isn't a busy loop
	shutdownWait = 2 * time.Second       // how long clients may take to come back after the end
)

// config is what the common flags say.
type config struct {
	masters   []string
	workload  string
	clients   int
	seconds   float64
	ttl       time.Duration
	warmup    float64
	instances int
}

// lockClient is one client's end of a lock library, bound to one key.
type lockClient interface {
	lock(ctx context.Context) error // blocks the library's own way until held, or fails
	unlock() error
}

// lockFactory opens one instance of the library (as one application process
// would hold it) and returns a maker of clients.
type lockFactory func(cfg config) (newClient func(key string) lockClient, mastersUsed int, note string, err error)

func peerMain(name string, factory lockFactory) func([]string) error {
	return func(args []string) error {
		cfg, err := parseFlags(name, args)
		if err != nil {
			return err
		}
		return runPeer(name, cfg, factory)
	}
}

func parseFlags(name string, args []string) (config, error) {
	var cfg config
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	masters := fs.String("masters", "", "host:port,host:port,...")
	fs.StringVar(&cfg.workload, "workload", "uncontended", "uncontended|contended|handoff")
	fs.IntVar(&cfg.clients, "clients", 1, "number of clients")
	fs.Float64Var(&cfg.seconds, "seconds", 5, "measured seconds")
	ttl := fs.Int("ttl-ms", 10000, "lock time to live")
	fs.Float64Var(&cfg.warmup, "warmup", 1, "seconds before measuring")
	fs.IntVar(&cfg.instances, "instances", 0, "library instances the clients are spread over (0: by workload)")
	if err := fs.Parse(args); err != nil {
		return cfg, err
	}
	if *masters == "" {
		return cfg, fmt.Errorf("--masters is missing")
	}
	cfg.masters = strings.Split(*masters, ",")
	cfg.ttl = time.Duration(*ttl) * time.Millisecond
	if cfg.workload == "handoff" {
		cfg.clients = 2
	}
	if cfg.instances == 0 {
		cfg.instances = defaultInstances(cfg.workload, cfg.clients)
	}
	return cfg, nil
}

// defaultInstances says over how many instances (stand-ins for application
// processes) the clients are spread.
func defaultInstances(workload string, clients int) int {
	switch workload {
	case "contended":
		return min(clients, 4)
	case "handoff":
		return 2
	default:
		return 1
	}
}

// worker is one client's private counters; the main goroutine reads them when
// the client has ended, or under mu when it has not.
type worker struct {
	mu        sync.Mutex
	latencies []int64 // ns
	opsTotal  int64
	errors    int64
	holdNs    int64
	holds     int64
	askedAt   atomic.Int64 // ns since start of the pending acquire, 0 when none
}

type bench struct {
	cfg        config
	start      time.Time
	from, to   time.Duration // the measured window, since start
	workers    []*worker
	inside     atomic.Int64
	violations atomic.Int64
	ctx        context.Context
}

func (b *bench) now() time.Duration            { return time.Since(b.start) }
func (b *bench) inWindow(t time.Duration) bool { return t >= b.from && t < b.to }
func (b *bench) over() bool                    { return b.ctx.Err() != nil }

func (b *bench) addOp(w *worker, at, latency time.Duration) {
	w.mu.Lock()
	w.opsTotal++
	if b.inWindow(at) {
		w.latencies = append(w.latencies, int64(latency))
	}
	w.mu.Unlock()
}

func (b *bench) addError(w *worker) {
	if at := b.now(); b.inWindow(at) && !b.over() {
		w.mu.Lock()
		w.errors++
		w.mu.Unlock()
	}
}

func (b *bench) pause(d time.Duration) {
	select {
	case <-b.ctx.Done():
	case <-time.After(d):
	}
}

// acquire asks until the lock is held, counting the library's failures; false
// when the run ended first.
func (b *bench) acquire(w *worker, c lockClient) bool {
	for !b.over() {
		if err := c.lock(b.ctx); err == nil {
			return true
		}
		b.addError(w)
		b.pause(errorPause)
	}
	return false
}

func (b *bench) release(w *worker, c lockClient) {
	if err := c.unlock(); err != nil {
		b.addError(w)
		b.pause(errorPause)
	}
}

func (b *bench) enter() {
	if b.inside.Add(1) != 1 {
		b.violations.Add(1)
	}
}

func (b *bench) leave() { b.inside.Add(-1) }

func (b *bench) uncontended(w *worker, c lockClient) {
	for !b.over() {
		asked := b.now()
		w.askedAt.Store(int64(asked) + 1)
		if !b.acquire(w, c) {
			return
		}
		if err := c.unlock(); err != nil {
			b.addError(w)
			b.pause(errorPause)
			continue
		}
		done := b.now()
		w.askedAt.Store(0)
		b.addOp(w, done, done-asked)
	}
}

func (b *bench) contended(w *worker, c lockClient) {
	for !b.over() {
		asked := b.now()
		w.askedAt.Store(int64(asked) + 1)
		if !b.acquire(w, c) {
			return
		}
		held := b.now()
		w.askedAt.Store(0)
		b.enter()
		time.Sleep(holdTime)
		b.leave()
		left := b.now()
		w.mu.Lock()
		w.holdNs += int64(left - held)
		w.holds++
		w.mu.Unlock()
		b.addOp(w, held, held-asked)
		b.release(w, c)
	}
}

// handoff is the state of the two ping-pong clients.
type handoff struct {
	asking   [2]chan struct{}
	got      [2]chan struct{}
	released atomic.Int64 // ns since start when the last release began, 0 at first
}

func newHandoff() *handoff {
	h := &handoff{}
	for i := range 2 {
		h.asking[i] = make(chan struct{}, 1)
		h.got[i] = make(chan struct{}, 1)
	}
	return h
}

func (b *bench) wait(ch chan struct{}) bool {
	select {
	case <-ch:
		return true
	case <-b.ctx.Done():
		return false
	}
}

func (b *bench) handoff(w *worker, c lockClient, h *handoff, me int) {
	other := 1 - me
	if me == 1 && !b.wait(h.got[other]) {
		return
	}
	for !b.over() {
		h.asking[me] <- struct{}{}
		w.askedAt.Store(int64(b.now()) + 1)
		if !b.acquire(w, c) {
			return
		}
		held := b.now()
		w.askedAt.Store(0)
		b.enter()
		if r := h.released.Load(); r != 0 {
			b.addOp(w, held, held-time.Duration(r))
		}
		h.got[me] <- struct{}{}
		if !b.wait(h.asking[other]) {
			b.leave()
			return
		}
		time.Sleep(handoffHold)
		b.leave()
		h.released.Store(int64(b.now()))
		b.release(w, c)
		if !b.wait(h.got[other]) {
			return
		}
	}
}

func cpuSeconds() float64 {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		return math.NaN()
	}
	sec := func(tv syscall.Timeval) float64 { return float64(tv.Sec) + float64(tv.Usec)/1e6 }
	return sec(ru.Utime) + sec(ru.Stime)
}

func runPeer(name string, cfg config, factory lockFactory) error {
	makers := make([]func(string) lockClient, cfg.instances)
	mastersUsed, note := 0, ""
	for i := range makers {
		var err error
		if makers[i], mastersUsed, note, err = factory(cfg); err != nil {
			return fmt.Errorf("%s: cannot open: %w", name, err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	warm := time.Duration(cfg.warmup * float64(time.Second))
	b := &bench{
		cfg: cfg, start: time.Now(), ctx: ctx,
		from: warm, to: warm + time.Duration(cfg.seconds*float64(time.Second)),
	}
	h := newHandoff()
	var wg sync.WaitGroup
	for i := range cfg.clients {
		w := &worker{latencies: make([]int64, 0, 1<<14)}
		b.workers = append(b.workers, w)
		key := "bench:one"
		if cfg.workload == "uncontended" {
			key = fmt.Sprintf("bench:own:%d", i)
		}
		c := makers[i%cfg.instances](key)
		wg.Add(1)
		go func() {
			defer wg.Done()
			switch cfg.workload {
			case "uncontended":
				b.uncontended(w, c)
			case "contended":
				b.contended(w, c)
			case "handoff":
				b.handoff(w, c, h, i)
			}
		}()
	}
	time.Sleep(b.from - b.now())
	cpu0 := cpuSeconds()
	time.Sleep(b.to - b.now())
	cpu := cpuSeconds() - cpu0
	end := b.now()
	var pending int64
	for _, w := range b.workers {
		if at := w.askedAt.Load(); at != 0 {
			pending = max(pending, int64(end)-at)
		}
	}
	cancel()
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(shutdownWait):
	}
	return json.NewEncoder(os.Stdout).Encode(b.result(name, mastersUsed, note, cpu, pending))
}

type result struct {
	Peer       string   `json:"peer"`
	Workload   string   `json:"workload"`
	Masters    int      `json:"masters"`
	Clients    int      `json:"clients"`
	OpsPerS    float64  `json:"ops_per_s"`
	P50        *float64 `json:"p50_us"`
	P99        *float64 `json:"p99_us"`
	P999       *float64 `json:"p999_us"`
	Max        *float64 `json:"max_us"`
	Errors     int64    `json:"errors"`
	Violations int64    `json:"violations"`
	Instances  int      `json:"instances"`
	Seconds    float64  `json:"seconds"`
	TTLMs      int64    `json:"ttl_ms"`
	Ops        int      `json:"ops"`
	OpsTotal   int64    `json:"ops_total"`
	Starved    int      `json:"starved"`
	Fairness   float64  `json:"fairness"`
	HoldUs     float64  `json:"hold_us"`
	PendingUs  float64  `json:"pending_us"`
	WindowCPU  float64  `json:"window_cpu_s"`
	Note       string   `json:"note,omitempty"`
}

func (b *bench) result(name string, masters int, note string, cpu float64, pending int64) result {
	r := result{
		Peer: name, Workload: b.cfg.workload, Masters: masters, Clients: b.cfg.clients,
		Instances: b.cfg.instances, Seconds: b.cfg.seconds, TTLMs: b.cfg.ttl.Milliseconds(),
		Violations: b.violations.Load(), WindowCPU: round(cpu, 4), PendingUs: us(pending), Note: note,
	}
	var all []int64
	var holdNs, holds int64
	var squares float64
	for _, w := range b.workers {
		w.mu.Lock()
		all = append(all, w.latencies...)
		squares += float64(len(w.latencies)) * float64(len(w.latencies))
		if len(w.latencies) == 0 {
			r.Starved++
		}
		r.OpsTotal += w.opsTotal
		r.Errors += w.errors
		holdNs += w.holdNs
		holds += w.holds
		w.mu.Unlock()
	}
	if holds > 0 {
		r.HoldUs = us(holdNs / holds)
	}
	slices.Sort(all)
	r.Ops = len(all)
	if squares > 0 { // Jain's index: 1 when all clients got as much, 1/clients when one got all
		r.Fairness = round(float64(r.Ops)*float64(r.Ops)/(float64(b.cfg.clients)*squares), 3)
	}
	r.OpsPerS = round(float64(len(all))/b.cfg.seconds, 2)
	r.P50, r.P99, r.P999, r.Max = percentile(all, 0.5), percentile(all, 0.99), percentile(all, 0.999), percentile(all, 1)
	return r
}

// percentile is the nearest-rank one, in microseconds; nil when there is none.
func percentile(sorted []int64, p float64) *float64 {
	if len(sorted) == 0 {
		return nil
	}
	i := int(math.Ceil(p*float64(len(sorted)))) - 1
	v := us(sorted[max(i, 0)])
	return &v
}

func us(ns int64) float64 { return round(float64(ns)/1000, 1) }

func round(v float64, digits int) float64 {
	f := math.Pow10(digits)
	return math.Round(v*f) / f
}
