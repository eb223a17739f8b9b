package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/chromedp/chromedp"
)

// pictureLimit is how long the demo may take until its Timeline has enough to show.
const pictureLimit = 5 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	page := flag.String("page", "http://127.0.0.1:9620", "`URL` of the demo's page")
	bars := flag.Int("bars", 60, "wait until the Timeline has `N` bars")
	file := flag.String("o", "../timeline.png", "write the picture to `FILE`")
	flag.Parse()
	err := picture(ctx, *page, *bars, *file)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "browser:", err)
		os.Exit(1)
	}
}

// picture writes a picture of the Timeline of a demo to a file, once it has enough bars.
func picture(ctx context.Context, page string, bars int, file string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, pictureLimit)
	defer cancel()
	dir, err := os.MkdirTemp("", "lockstep-browser-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // at worst, a profile remains
	tab, stop, err := start(ctx, dir)
	if err != nil {
		return err
	}
	defer stop()
	if err := light.show(tab); err != nil {
		return err
	}
	if err := chromedp.Do(tab, chromedp.Navigate(page+"/timeline?group=worker&since=5m")); err != nil {
		return fmt.Errorf("%s: %w; lockstep demo serves it", page, err)
	}
	// the page updates itself
	enough := fmt.Sprintf(`document.querySelectorAll("svg.lane rect.hold, svg.lane rect.wait").length >= %d`, bars)
	if _, err := chromedp.Run(tab, chromedp.Poll[bool](enough, chromedp.WithPollingTimeout(pictureLimit))); err != nil {
		return fmt.Errorf("wait for %d bars: %w", bars, err)
	}
	image, err := chromedp.Run(tab, chromedp.CaptureScreenshot())
	if err != nil {
		return err
	}
	return os.WriteFile(file, image, 0o644)
}
