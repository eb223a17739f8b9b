//go:build generated

package contract

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/cmd/contract/client"
	"lockstep/locks"
)

// TestTalk talks to a worker by a generated client, and checks each exchange against the worker's
// document. TestAGeneratedClientTalksToAWorker runs it.
func TestTalk(t *testing.T) {
	url := os.Getenv(workerEnv)
	checked := newContract(t, url, make(map[string]bool))
	c, err := client.NewClientWithResponses(url, client.WithHTTPClient(&http.Client{Transport: checked}))
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()

	o, err := redis.ParseURL(os.Getenv(redisEnv))
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(o)
	defer rdb.Close()
	shell, err := locks.Open(ctx, rdb, locks.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := shell.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	hold, err := shell.Acquire(ctx, locks.Exclusive("bill:1"))
	if err != nil {
		t.Fatal(err)
	}

	list, err := c.ListJobsWithResponse(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if list.JSON200 == nil || len(list.JSON200.Items) != 1 || list.JSON200.Items[0].Job != "greet" || list.JSON200.Items[0].Schedule != nil {
		t.Fatalf("jobs: %s", list.Body)
	}

	wait := "2m"
	enqueued, err := c.EnqueueWithResponse(ctx, &client.EnqueueParams{Wait: &wait}, client.EnqueueJSONRequestBody{Job: new("greet")})
	if err != nil {
		t.Fatal(err)
	}
	if enqueued.JSON201 == nil || enqueued.JSON201.State != "succeeded" {
		t.Fatalf("enqueue: %s", enqueued.Body)
	}
	id := enqueued.JSON201.Id // with a #, which must be escaped in a path
	run, err := c.GetRunWithResponse(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	if run.JSON200 == nil || run.JSON200.Id != id || len(run.JSON200.Attempts) != 1 || run.JSON200.Attempts[0].FinishedAt == nil || run.JSON200.Tick != nil {
		t.Fatalf("run %s: %s", id, run.Body)
	}

	held, err := c.ListLocksWithResponse(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if held.JSON200 == nil || !slices.ContainsFunc(held.JSON200.Items, func(lock client.Lock) bool {
		return lock.Lock == "bill:1" && len(lock.Holders) == 1 && lock.Holders[0].Token == hold.Token().String()
	}) {
		t.Fatalf("locks: %s", held.Body)
	}
	by := client.ListHoldsParamsGroupLock
	grouped, err := c.ListHoldsWithResponse(ctx, &client.ListHoldsParams{Group: &by})
	if err != nil {
		t.Fatal(err)
	}
	if grouped.JSON200 == nil {
		t.Fatalf("holds: %s", grouped.Body)
	}
	groups, err := grouped.JSON200.AsEntryGroupList()
	if err != nil || !slices.ContainsFunc(groups.Items, func(group client.EntryGroup) bool { return group.Group == "bill:1" && len(group.Entries) == 1 }) {
		t.Fatalf("holds by lock: %s, %v", grouped.Body, err)
	}
	refused, err := c.ReleaseLockWithResponse(ctx, "bill:1", client.ReleaseLockJSONRequestBody{Token: "1", Reason: "it is stuck"})
	if err != nil {
		t.Fatal(err)
	}
	if refused.ApplicationproblemJSON409 == nil || refused.ApplicationproblemJSON409.Status != http.StatusConflict ||
		!strings.Contains(refused.ApplicationproblemJSON409.Detail, "bill:1") {
		t.Fatalf("release with a wrong token: %s", refused.Body)
	}

	paused, err := c.PauseQueueWithResponse(ctx, "polite", client.PauseQueueJSONRequestBody{})
	if err != nil {
		t.Fatal(err)
	}
	if paused.JSON200 == nil || paused.JSON200.Queue != "polite" || !paused.JSON200.Paused {
		t.Fatalf("pause: %s", paused.Body)
	}
	resumed, err := c.ResumeQueueWithResponse(ctx, "polite", client.ResumeQueueJSONRequestBody{})
	if err != nil {
		t.Fatal(err)
	}
	if resumed.JSON200 == nil || resumed.JSON200.Paused {
		t.Fatalf("resume: %s", resumed.Body)
	}
}
