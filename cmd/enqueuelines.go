package cmd

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/jobs"
	"lockstep/locks/rule"
	"lockstep/locks/space"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

const (
	// The bounds of a batch. A file of any size takes the memory of one batch.
	batchLines = 200
	batchBytes = 1 << 20

	lineMost      = 16 << 20         // bytes of one line
	linesPatience = 30 * time.Second // for which a batch is sent again while Redis does not respond
	linesTry      = 10 * time.Second // how long one attempt may take
	linesLeft     = briskLimit / 2   // and how much of that a signal leaves it
)

// A requestLine is one line of a file of requests.
type requestLine struct {
	number  int // from 1
	request ledger.Request
}

// requestLines records a run for each line of a file, in batches. A batch is recorded whole or not
// at all, so at any time the lines up to a certain one are recorded, and no later one.
type requestLines struct {
	*tool
	conn     *connection
	operator *admin.Operator
	from     string         // the file, for messages
	request  ledger.Request // what all lines have in common
	ids      *idTemplate
	dry      bool
	out      *replyWriter

	in     *bufio.Reader
	number int // of the last line that was read
	// How far the file is recorded.
	upto, runs, existed int
}

// enqueueLines records a run for each line of a file, or of stdin.
func (t *tool) enqueueLines(cmd *cobra.Command, conn *connection, request ledger.Request, a asked) (err error) {
	ids, err := newIDTemplate(a.id)
	if err != nil {
		return misuse(cmd, "--id: %v", err)
	}
	request.Named = true
	l := &requestLines{tool: t, conn: conn, operator: t.operator(conn), from: a.lines, request: request, ids: ids, dry: a.dryRun,
		out: &replyWriter{tool: t, format: *a.output}}
	source := t.stdin
	if l.from == "-" {
		l.from = "stdin"
	} else {
		var file *os.File
		err := interruptible(cmd.Context(), func() (err error) { // a pipe may have no writer yet
			file, err = os.Open(a.lines)
			return err
		})
		if cmd.Context().Err() != nil {
			return err
		}
		if err != nil {
			return refuse("--args-lines: %w", err)
		}
		defer func() { _ = file.Close() }() // it was only read
		source = file
	}
	l.in = bufio.NewReaderSize(source, 256<<10)
	err = l.all(cmd.Context())
	if !l.dry {
		err = errors.Join(err, l.out.end())
	}
	switch {
	case err != nil:
		return err
	case l.dry:
		return t.write(many(l.runs, "run") + " can be recorded; nothing was\n")
	case l.existed > 0:
		fmt.Fprintf(t.stderr, "lockstep: %d of %s existed already; nothing was changed for them\n", l.existed, many(l.runs, "run"))
	}
	return nil
}

// all reads and records the lines, up to the first one that cannot be recorded.
func (l *requestLines) all(ctx context.Context) error {
	for {
		var batch []requestLine
		var bad error // what is wrong with the line behind the batch
		err := interruptible(ctx, func() (err error) {
			batch, bad, err = l.read()
			return err
		})
		if ctx.Err() != nil {
			return l.interrupted(ctx, "")
		}
		ended := errors.Is(err, io.EOF)
		if err != nil && !ended {
			return fmt.Errorf("read %s: %w; %s", l.from, err, l.recorded(""))
		}
		if err := l.record(ctx, batch); err != nil {
			return err
		}
		if bad != nil {
			return l.refused(l.number, bad)
		}
		if ended {
			return nil
		}
	}
}

// read returns the next lines: as many as are recorded together, or as have come. bad is the fault
// of the line behind them. The error is io.EOF when nothing follows them.
func (l *requestLines) read() (batch []requestLine, bad, err error) {
	for n := 0; len(batch) < batchLines && n < batchBytes; {
		text, err := l.line()
		if err != nil && !errors.Is(err, io.EOF) {
			if errors.Is(err, errLineTooLong) {
				return batch, err, nil
			}
			return batch, nil, err
		}
		if text = bytes.TrimSpace(text); len(text) > 0 { // blank lines separate nothing
			request, fault := l.requestOf(text)
			if fault != nil {
				return batch, fault, nil
			}
			batch, n = append(batch, requestLine{l.number, request}), n+len(text)
		}
		if err != nil {
			return batch, nil, err
		}
		if l.in.Buffered() == 0 && len(batch) > 0 {
			break // a program that writes slowly should not wait for its next line
		}
	}
	return batch, nil, nil
}

var errLineTooLong = fmt.Errorf("the line has more than %d bytes", lineMost)

// line returns the next line. The last one may have no end.
func (l *requestLines) line() (text []byte, err error) {
	for {
		part, err := l.in.ReadSlice('\n')
		if len(text) == 0 && len(part) > 0 {
			l.number++
		}
		if text = append(text, part...); len(text) > lineMost {
			return nil, errLineTooLong
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return text, err
		}
	}
}

// requestOf returns the request of a line.
func (l *requestLines) requestOf(text []byte) (ledger.Request, error) {
	request := l.request
	if err := json.Unmarshal(text, &request.Args); err != nil {
		return request, fmt.Errorf("the arguments are not JSON: %w", err)
	}
	var err error
	if request.ID, err = l.ids.id(l.number, request.Args); err != nil {
		return request, fmt.Errorf("--id: %w", err)
	}
	return request, nil
}

// record records a batch, in parts if it is too long for one list. If one of its lines cannot be
// recorded, it records those before.
func (l *requestLines) record(ctx context.Context, batch []requestLine) error {
	if len(batch) == 0 {
		return nil
	}
	list := ledger.List{Atomic: true}
	for i, line := range batch {
		if l.dry {
			if err := errors.Join(line.request.Job.CheckShown(line.request.Args), l.conn.ledger.CheckRequest(ctx, line.request)); err != nil {
				return l.refused(batch[i].number, err)
			}
			l.upto, l.runs = line.number, l.runs+1
			continue
		}
		list.Items = append(list.Items, line.request)
	}
	if l.dry {
		return nil
	}
	replies, doubt, err := l.send(ctx, list, batch[0].number)
	if bad, is := errors.AsType[*ledger.RequestError](err); is {
		if err := l.record(ctx, batch[:bad.Index]); err != nil {
			return err
		}
		if bad.Index > 0 && errors.Is(bad.Err, jobs.ErrTooLarge) {
			// The batch may be too large, and not the line.
			return l.record(ctx, batch[bad.Index:])
		}
		return l.refused(batch[bad.Index].number, bad.Err)
	}
	first, last := batch[0].number, batch[len(batch)-1].number
	if err != nil {
		more := ""
		if doubt {
			more = fmt.Sprintf(", and perhaps those up to %d", last)
		}
		if ctx.Err() != nil {
			return l.interrupted(ctx, more)
		}
		return l.conn.away(fmt.Errorf("lines %d to %d of %s: %w; %s", first, last, l.from, err, l.recorded(more)))
	}
	for _, r := range replies {
		if r.Exists {
			l.existed++
		}
	}
	l.upto, l.runs = last, l.runs+len(replies)
	if err := l.out.write(replies); err != nil {
		return fmt.Errorf("%w; %s", err, l.recorded(""))
	}
	return nil
}

// send records a list, which begins with a line. It repeats that for some time while Redis does not
// respond: the requests have their IDs, so none is recorded twice. doubt reports whether the list
// may be recorded, or a part of it, although there is an error.
func (l *requestLines) send(ctx context.Context, list ledger.List, first int) (replies []ledger.Replied, doubt bool, err error) {
	patience, cancel := context.WithTimeout(ctx, linesPatience)
	defer cancel()
	told := false
	err = ledger.Insist(func() (done bool, err error) {
		replies, err = l.try(ctx, list)
		if _, bad := errors.AsType[*ledger.RequestError](err); bad || err == nil {
			return true, err
		}
		doubt = doubt || !space.Unsent(err)
		if space.Over(err) || space.Lasting(err) || jobs.IsPermanent(err) || ctx.Err() != nil {
			return true, err
		}
		if !told {
			fmt.Fprintf(l.stderr, "lockstep: cannot record the lines from %d on, retrying: %v\n", first, err)
			told = true
		}
		return false, err
	}, patience.Done())
	return replies, doubt, err
}

// try records a list with one attempt. Its error may be that of one request: a list that goes in
// parts is then recorded in part. A signal leaves the attempt linesLeft. An attempt cannot be
// canceled, so its goroutine may outlive the call; the process exits soon after.
func (l *requestLines) try(ctx context.Context, list ledger.List) ([]ledger.Replied, error) {
	whole := context.WithoutCancel(ctx)
	ends, end := context.WithCancel(whole)
	defer end()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(linesLeft, end) })()
	replies := make(chan []ledger.Replied, 1)
	err := interruptible(ends, func() error {
		call, cancel := context.WithTimeout(whole, linesTry)
		defer cancel()
		all, err := l.operator.EnqueueAll(call, list, l.from+" "+l.ids.text, admin.Actor{Who: whoAmI()})
		for _, r := range all {
			err = cmp.Or(err, r.Err)
		}
		replies <- all
		return err
	})
	if err != nil {
		return nil, err
	}
	return <-replies, nil
}

// interrupted is the error after a signal. It says how far the file is recorded.
func (l *requestLines) interrupted(ctx context.Context, more string) error {
	fmt.Fprintf(l.stderr, "lockstep: interrupted; %s\n", l.recorded(more))
	return ctx.Err()
}

// refused is the error of a line that cannot be recorded.
func (l *requestLines) refused(number int, err error) error {
	return refuse("%s:%d: %w; %s", l.from, number, refusedRequest(err), l.recorded(""))
}

// recorded says which lines are recorded, and how to continue. more is what is not known.
func (l *requestLines) recorded(more string) string {
	if l.dry {
		return "nothing was recorded"
	}
	said := "no line is recorded"
	if l.upto > 0 {
		said = fmt.Sprintf("the lines up to %d are recorded", l.upto)
	}
	return fmt.Sprintf("%s%s; to continue, repeat the command with --id '%s', which records no line twice", said, more, l.ids.text)
}

// idTemplate makes the ID of each line's run.
type idTemplate struct {
	text string
	// between the numbers of the line; nil for an empty text
	parts []*rule.Key
}

// lineNumber is what the number of a line replaces in --id.
const lineNumber = "{line}"

// newIDTemplate reads the value of --id, by default new IDs with the number of the line.
func newIDTemplate(text string) (*idTemplate, error) {
	if text == "" {
		text = jobs.NewRunName(time.Now()) + "-" + lineNumber
	}
	i := &idTemplate{text: text}
	own := strings.Contains(text, lineNumber)
	for part := range strings.SplitSeq(text, lineNumber) {
		var key *rule.Key
		if part != "" {
			var err error
			if key, err = rule.ParseKey(part); err != nil {
				return nil, keyFault(err)
			}
			own = own || len(key.Fields()) > 0
		}
		i.parts = append(i.parts, key)
	}
	if !own {
		return nil, fmt.Errorf("each line is a run of its own: name it by {line}, its number, or by a field of its arguments, such as {bill_id}")
	}
	return i, nil
}

// keyFault returns an error about a key without the word for a lock.
func keyFault(err error) error {
	known, ok := errors.AsType[*rule.KeyError](err)
	switch {
	case !ok:
		return err
	case known.Field == "":
		return errors.New(known.Problem)
	}
	return fmt.Errorf("field %q of the args %s", known.Field, known.Problem)
}

// id returns the ID for a line.
func (i *idTemplate) id(number int, args json.RawMessage) (string, error) {
	var b strings.Builder
	for k, part := range i.parts {
		if k > 0 {
			b.WriteString(strconv.Itoa(number))
		}
		if part == nil {
			continue
		}
		values, err := part.Expand(args)
		if err != nil {
			return "", keyFault(err)
		}
		if len(values) != 1 {
			return "", fmt.Errorf("%s has %d values, want one", part, len(values))
		}
		b.WriteString(values[0])
	}
	return b.String(), jobs.ValidRunName(b.String())
}

// replyWriter prints the replies to requests, while more of them come.
type replyWriter struct {
	*tool
	format format
	begun  bool
}

func (w *replyWriter) write(replies []ledger.Replied) error {
	if w.format == asYAML {
		w.begun = true
		items := make([]admin.Requested, len(replies))
		for i, r := range replies {
			items[i] = admin.NewRequested(r, nil)
		}
		return w.encode(asYAML, items)
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	for _, r := range replies {
		if w.format == names {
			b.WriteString(string(r.Run) + "\n")
			continue
		}
		b.WriteString(map[bool]string{false: "[\n", true: ",\n"}[w.begun])
		w.begun = true
		if err := encoder.Encode(admin.NewRequested(r, nil)); err != nil {
			return fmt.Errorf("write JSON: %w", err)
		}
		b.Truncate(b.Len() - 1) // without its end of the line
	}
	return w.tool.write(b.String())
}

// end completes the list.
func (w *replyWriter) end() error {
	switch {
	case w.format == names, w.format == asYAML && w.begun:
		return nil
	case w.begun:
		return w.tool.write("\n]\n")
	}
	return w.tool.write("[]\n")
}
