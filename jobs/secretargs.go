package jobs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// HideArgs returns args in the form that may be shown: [Hidden] replaces each value of SecretArgs.
// Args that are not JSON are hidden as a whole. Args without a secret keep their bytes.
func (j *Job) HideArgs(args json.RawMessage) json.RawMessage {
	if len(j.SecretArgs) == 0 || len(args) == 0 {
		return args
	}
	value, err := readArgs(args)
	if err != nil {
		return HiddenArgs()
	}
	if !j.mapSecretArgs(value, func(string, any) any { return Hidden }) {
		return args
	}
	shown, err := EncodeArgs(value)
	if err != nil {
		return HiddenArgs()
	}
	return shown
}

// HiddenArgs hides all args of a run, since nothing tells which of them are secret.
func HiddenArgs() json.RawMessage { return json.RawMessage(strconv.Quote(Hidden)) }

// The bounds of [Job.ArgSecrets]: a redactor keeps some twenty forms of each text.
const (
	argSecretsMost = 1000     // texts
	argSecretMost  = 64 << 10 // bytes of one
)

// ArgSecrets returns the texts and numbers in the values of SecretArgs, for a [Redactor]: at most a
// thousand, and none above 64 KiB.
func (j *Job) ArgSecrets(args json.RawMessage) []Secret {
	if len(j.SecretArgs) == 0 || len(args) == 0 {
		return nil
	}
	value, err := readArgs(args)
	if err != nil {
		return nil // only a handler that takes any text can use them
	}
	var secrets []Secret
	j.mapSecretArgs(value, func(_ string, value any) any {
		secrets = appendSecrets(secrets, value)
		return value
	})
	secrets = slices.DeleteFunc(secrets, func(s Secret) bool { return len(s.Value) > argSecretMost })
	return secrets[:min(len(secrets), argSecretsMost)]
}

func appendSecrets(list []Secret, value any) []Secret {
	switch v := value.(type) {
	case string:
		list = append(list, Secret{Hidden, v})
	case json.Number:
		list = append(list, Secret{Hidden, v.String()})
	case []any:
		for _, inner := range v {
			list = appendSecrets(list, inner)
		}
	case map[string]any:
		for _, inner := range v {
			list = appendSecrets(list, inner)
		}
	}
	return list
}

// CheckShown refuses args in which a secret arg is [Hidden]: they were copied from where args are
// shown, and the run would get that text as its secret. The error is [IsPermanent].
func (j *Job) CheckShown(args json.RawMessage) error {
	if len(j.SecretArgs) == 0 || !bytes.Contains(args, []byte(Hidden)) {
		return nil
	}
	value, err := readArgs(args)
	if err != nil {
		return nil // refused elsewhere
	}
	copied := ""
	if value == Hidden {
		copied = "args"
	}
	j.mapSecretArgs(value, func(name string, value any) any {
		if value == Hidden {
			copied = name
		}
		return value
	})
	if copied == "" {
		return nil
	}
	return Permanent(fmt.Errorf("args: the value of the secret %s is %q, which is only shown in its place: give the value, or leave out args to use those of the definition",
		copied, Hidden))
}

// mapSecretArgs replaces the values of SecretArgs in args by the results of f. It returns false if
// there are none. A handler may accept a name in another case, as package json does.
func (j *Job) mapSecretArgs(args any, f func(name string, value any) any) (found bool) {
	switch v := args.(type) {
	case []any:
		for _, inner := range v {
			found = j.mapSecretArgs(inner, f) || found
		}
	case map[string]any:
		for name, inner := range v {
			if j.IsSecretArg(name) {
				v[name], found = f(name, inner), true
			} else {
				found = j.mapSecretArgs(inner, f) || found
			}
		}
	}
	return found
}

// IsSecretArg reports whether SecretArgs has the name of an arg.
func (j *Job) IsSecretArg(name string) bool {
	return slices.ContainsFunc(j.SecretArgs, func(secret string) bool { return strings.EqualFold(secret, name) })
}

// readArgs decodes args. Numbers keep their digits.
func readArgs(args json.RawMessage) (value any, err error) {
	decoder := json.NewDecoder(bytes.NewReader(args))
	decoder.UseNumber()
	err = decoder.Decode(&value)
	return value, err
}
