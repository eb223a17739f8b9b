package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// startLimit is how long chromium may take to start. On a busy machine, it is slow.
const startLimit = 2 * time.Minute

// errNotInstalled means that this machine has no browser.
var errNotInstalled = errors.New("chromium is not installed (Debian: the package chromium)")

// program returns the path of the browser.
func program() (string, error) {
	for _, name := range []string{"chromium", "chromium-browser"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errNotInstalled
}

// start starts a browser with an empty profile in dir. The context that it returns is that of its
// first tab, for one goroutine; stop ends the browser and waits for it.
func start(ctx context.Context, dir string) (tab context.Context, stop func(), err error) {
	path, err := program()
	if err != nil {
		return nil, nil, err
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:len(chromedp.DefaultExecAllocatorOptions):len(chromedp.DefaultExecAllocatorOptions)],
		chromedp.ExecPath(path),
		chromedp.UserDataDir(dir),
		// It needs rights that root in a container lacks. It opens only our pages.
		chromedp.NoSandbox,
		chromedp.WSURLReadTimeout(startLimit),
		chromedp.Flag("disable-dev-shm-usage", true), // a container's /dev/shm is small
	)
	allocated, cancelBrowser := chromedp.NewExecAllocator(ctx, options...)
	tab, cancelTab := chromedp.NewContext(allocated)
	stop = func() {
		cancelTab()
		cancelBrowser()
	}
	// the first call starts the browser and binds it to this context
	if err := chromedp.Do(tab); err != nil {
		stop()
		return nil, nil, fmt.Errorf("start %s: %w", path, err)
	}
	return tab, stop, nil
}

// look is how a page is shown.
type look struct {
	name          string
	width, height int64
	scheme        string // of colors: light or dark
}

var (
	light = look{"light", 1280, 900, "light"}
	dark  = look{"dark", 1280, 900, "dark"}
	phone = look{"phone", 360, 740, "light"}
)

// show makes a tab show pages so.
func (l look) show(tab context.Context) error {
	if err := chromedp.Do(tab, chromedp.EmulateViewport(l.width, l.height)); err != nil {
		return err
	}
	_, err := chromedp.Call(tab, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: l.scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
	}})
	return err
}
