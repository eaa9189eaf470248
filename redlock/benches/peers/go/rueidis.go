package main

import (
	"context"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// newRueidis opens rueidislock on the first master, as its README says for a
// single Redis of at least 7.0.5.
func newRueidis(cfg config) (func(string) lockClient, int, string, error) {
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: cfg.masters[:1], ForceSingleClient: true},
		KeyValidity:    cfg.ttl,
		KeyMajority:    1,
		NoLoopTracking: true,
	})
	if err != nil {
		return nil, 0, "", err
	}
	return func(key string) lockClient {
		return &rueidisClient{locker: locker, key: key}
	}, 1, "KeyMajority 1, NoLoopTracking; waits on client-side-caching notices", nil
}

type rueidisClient struct {
	locker rueidislock.Locker
	key    string
	cancel context.CancelFunc
}

func (c *rueidisClient) lock(ctx context.Context) error {
	_, cancel, err := c.locker.WithContext(ctx, c.key)
	if err != nil {
		return err
	}
	c.cancel = cancel
	return nil
}

func (c *rueidisClient) unlock() error {
	c.cancel()
	return nil
}
