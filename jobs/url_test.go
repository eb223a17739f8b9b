package jobs

import "testing"

func TestSafeURLHidesPossibleSecrets(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"":                          "",
		"embedded":                  "embedded",
		"redis://127.0.0.1:6379/0":  "redis://127.0.0.1:6379/0",
		"redis://:pw@h:1/0":         "redis://(hidden)@h:1/0",
		"redis://u:p/w?x@h:1/0":     "redis://(hidden)@h:1/0",
		"redis://h:1/0?password=pw": "redis://h:1/0?password=(hidden)",
		"redis://h:1/0?pw":          "redis://h:1/0?(hidden)",
		"redis://h/0?a=1&db=2&b=&c": "redis://h/0?a=(hidden)&db=2&b=&(hidden)",
		"redis://h/0?password=a#b":  "redis://h/0?password=(hidden)",
		"unix:///run/r.sock?db=1":   "unix:///run/r.sock?db=1",
		"redis-sentinel://a:1,b:2/0?master=m&password=x": "redis-sentinel://a:1,b:2/0?master=m&password=(hidden)",
		"https://h/a@b":                    "https://h/a@b",
		"https://h:80/a@b?t=@c":            "https://h:80/a@b?t=(hidden)",
		"https://[::1]:80/a@b":             "https://[::1]:80/a@b",
		"https://u@h/":                     "https://(hidden)@h/",
		"https://u:pw@h/x@y":               "https://(hidden)@h/x@y",
		"https://u:p/w@h/":                 "https://(hidden)@h/",
		"https://h/?key=${KEY}&a=b":        "https://h/?key=${KEY}&a=(hidden)",
		"https://${U}:${file:/a?b&c@d}@h/": "https://${U}:${file:/a?b&c@d}@h/",
		"redis://${U}:pw@h:1/0":            "redis://(hidden)@h:1/0",
		"redis://${U}:pw${P}@h:1/0":        "redis://(hidden)@h:1/0",
		"redis://u:p$$$$w@h:1/0":           "redis://(hidden)@h:1/0",
		"redis://:${P}@h:1/0":              "redis://:${P}@h:1/0",
		"https://h/?key=pw${KEY}":          "https://h/?key=(hidden)",
		"https://h/?a=b#access_token=x":    "https://h/?a=(hidden)#(hidden)",
		"https://h/?master=m":              "https://h/?master=(hidden)",
		"see https://h/?a=b":               "see https://h/?a=b",
		"https://h/?key=${1KEY}":           "https://h/?key=(hidden)", // not a ${...} that a worker replaces
		// a ${...} with a mistake must not hide where the password is
		"https://${file:/run/u}:pw@h/${A-1}": "https://(hidden)@h/${A-1}",
		"https://${A/b}:pw@h/":               "https://(hidden)@h/",
	} {
		if got := SafeURL(url); got != want {
			t.Errorf("%s: got %s, want %s", url, got, want)
		}
	}
}

func TestPasswordIsReplacedOnlyWhereThePasswordIs(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]bool{
		"redis://:${P}@h:1/0":               true,
		"redis://u:${file:/a@b:c}@h:1/0":    true,
		"redis://u:${P}${Q}@h:1/0":          true,
		"redis-sentinel://u:${P}@a:1,b:2/0": true,
		"redis://u:pw@h:1/0?x=:${P}@":       false,
		"redis://u:pw${P}@h:1/0":            false,
		"redis://${U}@h:1/0":                false,
		"redis://u:@h:1/0":                  false,
		"redis://h:1/0":                     false,
		"redis://u:${1P}@h:1/0":             false,
		":${P}@h:1/0":                       false,
		"":                                  false,
	} {
		if got := PasswordIsReplaced(url); got != want {
			t.Errorf("%s: got %t, want %t", url, got, want)
		}
	}
}
