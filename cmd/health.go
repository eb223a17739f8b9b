package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/configs"
)

func (t *tool) healthCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "health",
		Short: "Check that the worker on this host is alive, for HEALTHCHECK",
		Long: `Ask the worker that listens on admin.listen whether it is alive, and exit with 0 or 1. Redis is not contacted, since
an outage of Redis is no reason to restart workers. For a worker on another port, name its config, or set
LOCKSTEP_ADMIN__LISTEN.

Errors in the config are no reason either: a running worker refuses such a change and keeps its old config. They are a
warning, which names the address: admin.listen from the environment, else from a file in which it can be read, else the
default. A file that is not valid YAML cannot be read, so set LOCKSTEP_ADMIN__LISTEN rather than admin.listen in a file.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			options := t.loadOptions(cmd, configs.Find(t.configPaths, nil))
			options.SettingsOnly, options.Partial = true, true
			config, err := readConfig(options)
			problems, flawed := errors.AsType[configs.Problems](err)
			if err != nil && !flawed {
				return err
			}
			base := "http://" + localAddress(config.Settings.Admin.Listen)
			// A config with errors may set an address that could not be read.
			if !config.Settings.Admin.ListenSet && !flawed {
				if demo := findDemo(cmd.Context()); demo != nil {
					base = demo.Page
				}
			}
			url := base + "/livez"
			if flawed {
				fmt.Fprintf(t.stderr, "lockstep: the config cannot be used: %s (see: lockstep check); probing %s, from admin.listen (%s)\n",
					problems.Summary(), url, config.Origins["admin.listen"])
			}
			if err := alive(cmd.Context(), url); err != nil {
				return fmt.Errorf("no healthy worker at %s: %w; its address is admin.listen", url, err)
			}
			return t.write("ok " + url + "\n")
		},
	}
}

// localAddress returns where a server that listens on an address can be reached from its own host.
func localAddress(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return listen
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

// alive sends one probe.
func alive(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	// no proxy: the worker is on this host
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		var failed interface{ Unwrap() error }
		if errors.As(err, &failed) { // without the URL, which the caller adds
			err = failed.Unwrap()
		}
		return err
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(response.Body, 200))
		return fmt.Errorf("it answers %s: %s", response.Status, strings.TrimSpace(firstLine(string(body))))
	}
	return nil
}
