package jobs_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"lockstep/jobs"
)

var (
	key1 = []byte(strings.Repeat("1", 32))
	key2 = []byte(strings.Repeat("2", 32))
)

func keys(t *testing.T, namespace string, list ...[]byte) *jobs.Keys {
	t.Helper()
	k, err := jobs.NewKeys(namespace, list...)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestSignatureIsValidOnlyForItsJobNamespaceAndBytes(t *testing.T) {
	t.Parallel()
	definition := []byte(`{"name":"backup","command":["true"]}`)
	mine := keys(t, "shop", key1)
	signed := mine.Sign("backup", definition)
	if !json.Valid(signed) || !bytes.Equal(jobs.Unsigned(signed), definition) {
		t.Fatalf("%s is not the definition with one more member", signed)
	}
	if err := mine.Verify("backup", signed); err != nil {
		t.Errorf("its own signature: %v", err)
	}
	digit := bytes.Clone(signed)
	digit[len(digit)-3] ^= 1
	for name, one := range map[string]struct {
		keys *jobs.Keys
		job  string
		text []byte
		kind string
	}{
		"another key":             {keys(t, "shop", key2), "backup", signed, "wrong"},
		"another namespace":       {keys(t, "shop2", key1), "backup", signed, "wrong"},
		"another job":             {mine, "restore", signed, "wrong"},
		"a changed definition":    {mine, "backup", bytes.Replace(signed, []byte(`"true"`), []byte(`"evil"`), 1), "wrong"},
		"a changed signature":     {mine, "backup", digit, "wrong"},
		"a moved boundary":        {keys(t, "shopb", key1), "ackup", signed, "wrong"},
		"no signature":            {mine, "backup", definition, "unsigned"},
		"a member after it":       {mine, "backup", append(bytes.Clone(signed[:len(signed)-1]), `,"command":["evil"]}`...), "unsigned"},
		"no hexadecimal digits":   {mine, "backup", bytes.Replace(signed, signed[len(signed)-6:len(signed)-2], []byte("zzzz"), 1), "unsigned"},
		"nothing but a signature": {mine, "backup", signed[len(definition)-1:], "unsigned"},
		"nothing":                 {mine, "backup", nil, "unsigned"},
	} {
		err := one.keys.Verify(one.job, one.text)
		var wrong *jobs.SignatureError
		if !errors.As(err, &wrong) || !errors.Is(err, jobs.ErrSignature) || wrong.Kind() != one.kind {
			t.Errorf("%s: got %v, want it to be refused as %s", name, err, one.kind)
		}
	}
}

func TestTwoKeysVerifyAndTheFirstSigns(t *testing.T) {
	t.Parallel()
	definition := []byte(`{"name":"backup"}`)
	before, both, after := keys(t, "shop", key1), keys(t, "shop", key2, key1), keys(t, "shop", key2)
	if err := both.Verify("backup", before.Sign("backup", definition)); err != nil {
		t.Errorf("of the old key: %v", err)
	}
	if err := after.Verify("backup", both.Sign("backup", definition)); err != nil {
		t.Errorf("of the new key: %v", err)
	}
	if err := after.Verify("backup", before.Sign("backup", definition)); err == nil {
		t.Error("the old key is accepted after it was dropped")
	}
	if before.ID() == after.ID() || both.ID() != after.ID() || len(before.ID()) != 8 {
		t.Errorf("the ids are %s, %s, %s: want that of the key that signs", before.ID(), both.ID(), after.ID())
	}
}

func TestAShortKeyIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := jobs.NewKeys("shop", key1, key2[:31]); err == nil || !strings.Contains(err.Error(), "key 2 has 31 bytes") {
		t.Errorf("got %v", err)
	}
	none, err := jobs.NewKeys("shop")
	if none != nil || err != nil || none.Verify("x", nil) != nil || none.ID() != "" {
		t.Errorf("no keys: got %v, %v; want nil keys, which accept everything", none, err)
	}
}

func TestADefinitionThatWasReadKeepsItsSignature(t *testing.T) {
	t.Parallel()
	// Written by another build: this build would order or name the members differently.
	text := []byte(`{"since_next_release":1,"timeout":60000000000,"name":"backup"}`)
	signed := keys(t, "shop", key1).Sign("backup", text)
	job, err := jobs.ReadJob(string(signed))
	if err != nil || job.Name != "backup" || job.Timeout != time.Minute {
		t.Fatalf("got %+v, %v", job, err)
	}
	if again, fromRedis, err := job.Definition(); err != nil || !fromRedis || !bytes.Equal(again, signed) {
		t.Errorf("got %s, %t, %v; want it as it was read", again, fromRedis, err)
	}
	if job, err = jobs.ReadJob(string(text)); err != nil {
		t.Fatal(err)
	}
	if _, fromRedis, err := job.Definition(); err != nil || !fromRedis {
		t.Errorf("an unsigned one is said not to come from Redis: %v", err)
	}
	if _, fromRedis, err := (&jobs.Job{Name: "backup"}).Definition(); err != nil || fromRedis {
		t.Errorf("one of a config is said to come from Redis: %v", err)
	}
}
