package main

import (
	"context"
	"errors"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"
)

// newRedsync opens redsync over all masters with the defaults of redsync and go-redis.
func newRedsync(cfg config) (func(string) lockClient, int, string, error) {
	return openRedsync(cfg, false)
}

// newRedsyncFailFast is redsync as its options allow it to be tuned against a
// master that does not answer: it returns at quorum, and go-redis keeps to the
// deadline of the context.
func newRedsyncFailFast(cfg config) (func(string) lockClient, int, string, error) {
	return openRedsync(cfg, true)
}

func openRedsync(cfg config, failFast bool) (func(string) lockClient, int, string, error) {
	pools := make([]redis.Pool, len(cfg.masters))
	for i, addr := range cfg.masters {
		pools[i] = goredis.NewPool(goredislib.NewClient(&goredislib.Options{
			Addr:                  addr,
			ContextTimeoutEnabled: failFast,
		}))
	}
	rs := redsync.New(pools...)
	opts := []redsync.Option{redsync.WithExpiry(cfg.ttl)}
	note := "defaults: 32 tries, 50-250 ms random delay, waits for all masters"
	if failFast {
		opts = append(opts, redsync.WithFailFast(true))
		note = "WithFailFast, ContextTimeoutEnabled; else defaults: 32 tries, 50-250 ms random delay"
	}
	return func(key string) lockClient {
		return redsyncClient{rs.NewMutex(key, opts...)}
	}, len(cfg.masters), note, nil
}

type redsyncClient struct{ m *redsync.Mutex }

func (c redsyncClient) lock(ctx context.Context) error { return c.m.LockContext(ctx) }

func (c redsyncClient) unlock() error {
	ok, err := c.m.Unlock()
	if !ok && err == nil {
		return errors.New("not released on a quorum")
	}
	if ok {
		return nil // a minority that failed is no failure of the release
	}
	return err
}
