package locks
import ("testing";"fmt";"time";"lockstep/locks/redistest")
func TestZZ(t *testing.T){
 r:=newRig(t, redistest.Client(t))
 r.do(t,"open","s",600000,"{}")
 for _,nm:=range []int{1,10,100,1000} {
 for _, waiters := range []int{0,1,2,50} {
 items:=func(id string) []any{ a:=[]any{"s",id,"",0,600000}; for i:=range nm{a=append(a,fmt.Sprintf("xbill:%06d",i))}; return a}
 r.do(t,"acquire",items("h.1")...)
 for w:=range waiters { r.do(t,"acquire",items(fmt.Sprint("w.",w))...) }
 r.do(t,"reap")
 b:=time.Now(); r.do(t,"release","h.1"); rel:=time.Since(b)
 b=time.Now(); r.do(t,"acquire",append([]any{"s","n.1","",-1,0},items("")[5:]...)...); acq:=time.Since(b)
 t.Log(nm,waiters,"release",rel,"try",acq)
 for w:=range waiters { r.do(t,"release",fmt.Sprint("w.",waiters-1-w)) }
 r.do(t,"release","n.1")
 }}
}
