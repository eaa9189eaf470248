// A contender that acquires a lock by redsync over go-redis. Its orders and reports: see ../protocol.rs.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"
)

// Attempts of one call, with redsync's own pauses of 50 to 250 ms between them, before orders are read again.
const tries = 8

// Call timeout as a share of the TTL. redsync's default, a twentieth, is short for TTLs below a second on a busy machine.
const timeoutFactor = 0.25

func main() {
	masters := flag.String("masters", "", "addresses of the masters, separated by commas")
	secret := flag.String("secret", "", "folder with the files username and password")
	key := flag.String("key", "", "the lock's key on a master")
	ttl := flag.Duration("ttl", time.Second, "time to live of the lock")
	seed := flag.Uint64("seed", 0, "seed of the lengths of sections")
	unlocked := flag.Bool("unlocked", false, "claim sections without the lock")
	flag.Parse()
	// A master that is down is expected, and not logged.
	goredislib.SetLogger(silent{})

	var pools []redis.Pool
	for addr := range strings.SplitSeq(*masters, ",") {
		// Without ContextTimeoutEnabled a call to a master that hangs ends after 5 s, whatever redsync's own timeout.
		pools = append(pools, goredis.NewPool(goredislib.NewClient(&goredislib.Options{
			Addr:                  addr,
			Username:              read(*secret, "username"),
			Password:              read(*secret, "password"),
			ContextTimeoutEnabled: true,
		})))
	}
	mutex := func() *redsync.Mutex {
		return redsync.New(pools...).NewMutex(*key,
			redsync.WithExpiry(*ttl), redsync.WithTries(tries), redsync.WithTimeoutFactor(timeoutFactor))
	}
	c := contender{mutex: mutex, ttl: *ttl, unlocked: *unlocked, orders: make(chan string)}
	c.random = rand.New(rand.NewPCG(*seed, 0))
	go c.readOrders()
	c.run()
}

func read(folder, file string) string {
	content, err := os.ReadFile(filepath.Join(folder, file))
	if err != nil {
		panic(err)
	}
	return string(content)
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

type contender struct {
	mutex    func() *redsync.Mutex
	ttl      time.Duration
	random   *rand.Rand
	unlocked bool
	orders   chan string
	contends bool
	keeps    bool
}

func (c *contender) readOrders() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		c.orders <- lines.Text()
	}
	close(c.orders)
}

// run contends as ordered, until its input ends.
func (c *contender) run() {
	for {
		for !c.contends {
			if !c.obey(<-c.orders) {
				return
			}
		}
		m := c.mutex()
		locked := c.unlocked || m.Lock() == nil
		if !c.obeyPending() {
			return
		}
		if locked {
			c.section(m)
			c.rest()
		}
	}
}

// obeyPending obeys orders that have arrived meanwhile, and returns whether to go on.
func (c *contender) obeyPending() bool {
	for {
		select {
		case order := <-c.orders:
			if !c.obey(order) {
				return false
			}
		default:
			return true
		}
	}
}

// obey returns whether to go on.
func (c *contender) obey(order string) bool {
	switch order {
	case "clock":
		report("clock", clock())
	case "contend":
		c.contends = true
	case "keep":
		c.keeps = true
	case "try":
		if m := c.mutex(); m.TryLock() == nil {
			c.keeps = true
			c.section(m)
		} else {
			report("denied")
		}
	case "":
		return false
	}
	return true
}

// section reports its beginning and end, and how long the library says that the lock is held.
func (c *contender) section(m *redsync.Mutex) {
	value := m.Value()
	if c.unlocked {
		value = "unlocked"
	}
	report("start", clock(), c.until(m), value)
	switch {
	case c.keeps:
		c.keeps = false
		report("kept")
		c.untilReleased(m)
	case !c.unlocked && c.random.IntN(32) == 0:
		time.Sleep(c.ttl / 4)
		c.extend(m)
		time.Sleep(c.ttl / 4)
	default:
		time.Sleep(time.Duration(1+c.random.IntN(12)) * time.Millisecond)
	}
	report("end", clock())
	if !c.unlocked {
		ctx, cancel := c.timeout()
		defer cancel()
		released, _ := m.UnlockContext(ctx)
		report("released", released)
	}
}

// rest lets others have a turn. A contender that claims sections without the lock needs no rest.
func (c *contender) rest() {
	if !c.unlocked {
		time.Sleep(time.Duration(c.random.IntN(300)) * time.Millisecond)
	}
}

func (c *contender) untilReleased(m *redsync.Mutex) {
	for order := range c.orders {
		switch order {
		case "extend":
			c.extend(m)
		case "release":
			return
		}
	}
}

func (c *contender) extend(m *redsync.Mutex) {
	ctx, cancel := c.timeout()
	defer cancel()
	if extended, _ := m.ExtendContext(ctx); extended {
		report("extended", clock(), c.until(m))
	} else {
		report("not-extended")
	}
}

// timeout is redsync's own timeout of an attempt. Its other calls have none: a master that hangs would block them.
func (c *contender) timeout() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), time.Duration(timeoutFactor*float64(c.ttl)))
}

// until is the end of validity on the machine's monotonic clock. The clock is read first: a pause between the two
// readings makes the claim shorter, never longer.
func (c *contender) until(m *redsync.Mutex) int64 {
	now := clock()
	if c.unlocked {
		return now + c.ttl.Nanoseconds()
	}
	return now + time.Until(m.Until()).Nanoseconds()
}

func clock() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	return now.Nano()
}

// report writes a line at once, so that it arrives even if the process is killed right after it.
func report(words ...any) {
	fmt.Fprintln(os.Stdout, words...)
}
