package space

import "testing"

func TestScriptContainsOnlyWhatItUses(t *testing.T) {
	t.Parallel()
	const library = `-- about
local a, b = 1, 2
local function first() return a end

-- first is not named by what follows
local function second(x)
  -- it says first
  return x
end
local function third()
  return second(b)
end
local S = {third = 3}
`
	for script, want := range map[string]string{
		"return 1":              "",
		"return first()":        "local a, b = 1, 2\nlocal function first() return a end\n",
		"return second(afirst)": "local function second(x)\n  return x\nend\n",
		"return third()":        "local a, b = 1, 2\nlocal function second(x)\n  return x\nend\nlocal function third()\n  return second(b)\nend\n",
		"return S":              "local a, b = 1, 2\nlocal function second(x)\n  return x\nend\nlocal function third()\n  return second(b)\nend\nlocal S = {third = 3}\n",
	} {
		if got := link(library, script); got != want+script {
			t.Errorf("%s: got\n%s\nwant\n%s", script, got, want+script)
		}
	}
}
