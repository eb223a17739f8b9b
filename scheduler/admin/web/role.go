package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Role bounds what a user may do. The package's doc lists what each role may do.
type Role string

const (
	RoleViewer   Role = "viewer"   // sees everything, and changes nothing
	RoleOperator Role = "operator" // also acts on runs, jobs, queues and locks
	RoleAdmin    Role = "admin"    // may do everything
)

// roles has all roles. Each may do what the ones before it may do.
var roles = []Role{RoleViewer, RoleOperator, RoleAdmin}

// May reports whether a user with this role may do what needs the role least.
func (r Role) May(least Role) bool {
	needed := slices.Index(roles, least)
	return needed >= 0 && slices.Index(roles, r) >= needed
}

// errRole is returned when the role of a user does not suffice.
var errRole = errors.New("not allowed")

// identity is the user that sent a request.
type identity struct {
	name string // "" where users do not sign in
	role Role
}

// userKey is the key of the [identity] in the context of a request.
type userKey struct{}

// signedIn returns the user that sent a request. A request for a probe has none.
func signedIn(ctx context.Context) identity {
	user, _ := ctx.Value(userKey{}).(identity)
	return user
}

// isAdmitted reports whether the client that sent a request has access.
func isAdmitted(r *http.Request) bool { return r.Context().Value(userKey{}) != nil }

// demand returns an error unless the role of the user that sent a request suffices.
func (s *Server) demand(ctx context.Context, least Role) error {
	role := signedIn(ctx).role
	switch {
	case role.May(least):
		return nil
	case s.o.ReadOnly:
		return fmt.Errorf("%w: this needs the role %s, and admin.read_only makes every user a viewer", errRole, least)
	}
	return fmt.Errorf("%w: this needs the role %s, and yours is %s", errRole, least, role)
}

// groups has the groups of a reverse proxy's users that have a role. "*" is a group of every user.
type groups struct {
	header string // the header with a user's groups; "": every user is an admin
	of     map[Role][]string
}

func groupsOf(auth Auth) (groups, error) {
	g := groups{auth.GroupsHeader, map[Role][]string{RoleViewer: auth.Viewers, RoleOperator: auth.Operators, RoleAdmin: auth.Admins}}
	if named := len(auth.Viewers)+len(auth.Operators)+len(auth.Admins) > 0; named != (g.header != "") {
		return g, errors.New("admin.auth.groups_header and the groups in admin.auth.viewers, operators and admins: set both or none")
	}
	return g, nil
}

// role returns the highest role that the groups of a request's user have.
func (g groups) role(r *http.Request) (Role, error) {
	if g.header == "" {
		return RoleAdmin, nil
	}
	values := r.Header.Values(g.header)
	if len(values) > 1 { // the proxy's own, and one that a client sent for the proxy to pass on
		return "", fmt.Errorf("%w: the header %s is there %d times", errSignIn, g.header, len(values))
	}
	has := []string{"*"}
	for name := range strings.FieldsFuncSeq(strings.Join(values, ""), func(r rune) bool { return r == ',' || r == '|' }) {
		has = append(has, strings.TrimSpace(name))
	}
	for _, role := range slices.Backward(roles) {
		if slices.ContainsFunc(g.of[role], func(name string) bool { return slices.Contains(has, name) }) {
			return role, nil
		}
	}
	return "", fmt.Errorf("%w: no group of yours is in admin.auth.viewers, operators or admins", errRole)
}
